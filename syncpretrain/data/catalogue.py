"""Catalogue of the published data sets: files, checksums, sources and licences.

The SHA-256 sums are those that TensorFlow Datasets (``url_checksums/``) and scikit-learn
(``fetch_20newsgroups``) publish; MNIST's sums are of the unpacked files.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a data set.

    Attributes
    ----------
    name : str
        Name in the folder of the data set, and on a mirror.
    sha256 : str
        Sum of the file, or with ``unpacked`` of its unpacked bytes, since mirrors pack them
        differently.
    bytes : int
        Approximate size, for the progress and as a limit.
    url : str
        Address, if it does not end in the name.
    """

    name: str
    sha256: str
    bytes: int
    url: str = ""
    unpacked: bool = False


@dataclass(frozen=True, slots=True)
class NamedData:
    """One published data set.

    Attributes
    ----------
    name : str
        Name that ``--data`` takes.
    kind : str
        Form of the files: ``idx``, ``cifar`` or ``newsgroups``.
    title : str
        A few words on the contents.
    files : tuple of RemoteFile
        For ``idx`` images and labels to train on, then images and labels to test with.
    addresses : tuple of str
        Folders on the network that have these files, each tried once.
    source, licence : str
        Address of the description, and terms of publication.
    held_out : int
        One of this number of training examples is held out for validation.
    axes : tuple of int
        Axes of an example that is an image.
    """

    name: str
    kind: str
    title: str
    files: tuple[RemoteFile, ...]
    addresses: tuple[str, ...]
    source: str
    licence: str
    held_out: int = 6
    axes: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    def urls(self, file: RemoteFile, mirror: str | None = None) -> list[str]:
        """Return the addresses of a file; if a ``mirror`` is given, its address there alone."""
        if mirror is not None:
            return [f"{mirror.rstrip('/')}/{file.name}"]
        return [file.url] if file.url else [f"{folder}{file.name}" for folder in self.addresses]


def _idx(sums: dict[str, tuple[str, int]], *, unpacked: bool = False) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{name}.gz", sha256, size, unpacked=unpacked)
        for name, (sha256, size) in sums.items()
    )


MNIST = _idx(
    {
        "train-images-idx3-ubyte": (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            9_912_422,
        ),
        "train-labels-idx1-ubyte": (
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            28_881,
        ),
        "t10k-images-idx3-ubyte": (
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            1_648_877,
        ),
        "t10k-labels-idx1-ubyte": (
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            4_542,
        ),
    },
    unpacked=True,
)
FASHION = _idx(
    {
        "train-images-idx3-ubyte": (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            26_421_880,
        ),
        "train-labels-idx1-ubyte": (
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            29_515,
        ),
        "t10k-images-idx3-ubyte": (
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            4_422_102,
        ),
        "t10k-labels-idx1-ubyte": (
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            5_148,
        ),
    }
)
KUZUSHIJI = _idx(
    {
        "train-images-idx3-ubyte": (
            "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
            18_165_135,
        ),
        "train-labels-idx1-ubyte": (
            "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            29_497,
        ),
        "t10k-images-idx3-ubyte": (
            "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
            3_041_136,
        ),
        "t10k-labels-idx1-ubyte": (
            "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
            5_120,
        ),
    }
)

CATALOGUE = {
    named.name: named
    for named in (
        NamedData(
            "mnist",
            "idx",
            "70,000 handwritten digits, 28x28",
            MNIST,
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            "http://yann.lecun.com/exdb/mnist/",
            "CC BY-SA 3.0",
            axes=(28, 28),
        ),
        NamedData(
            "fashion-mnist",
            "idx",
            "70,000 pictures of clothes, 28x28",
            FASHION,
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            "https://github.com/zalandoresearch/fashion-mnist",
            "MIT",
            axes=(28, 28),
        ),
        NamedData(
            "kmnist",
            "idx",
            "70,000 cursive Japanese characters, 28x28",
            KUZUSHIJI,
            ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
            "https://github.com/rois-codh/kmnist",
            "CC BY-SA 4.0",
            axes=(28, 28),
        ),
        NamedData(
            "cifar10",
            "cifar",
            "60,000 photographs of 10 classes, 3x32x32",
            (
                RemoteFile(
                    "cifar-10-binary.tar.gz",
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    170_052_171,
                ),
            ),
            ("https://www.cs.toronto.edu/~kriz/",),
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            "none stated; its authors ask to cite Krizhevsky (2009)",
            held_out=5,
            axes=(3, 32, 32),
        ),
        NamedData(
            "20newsgroups",
            "newsgroups",
            "18,846 messages of 20 newsgroups, as counts of 2,000 words",
            (
                RemoteFile(
                    "20news-bydate.tar.gz",
                    "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
                    14_464_277,
                    url="https://ndownloader.figshare.com/files/5975967",
                ),
            ),
            (),
            "http://qwone.com/~jason/20Newsgroups/",
            "none stated; messages by their authors",
            held_out=10,
        ),
    )
}
