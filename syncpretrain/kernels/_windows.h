/* Images, and the windows on them that filters see. Included by _native.c alone.
 *
 * Images are padded and their channels laid side by side: then a window is some runs of numbers.
 */
enum {
    VEC = 16,          /* floats of a vector; also read and written beyond the end of a run */
    IMAGES = 16 * 1024, /* floats of images and lists taken together, about */
};
typedef int32_t Index __attribute__((may_alias)); /* lies in arrays of floats */

typedef struct {
    Py_ssize_t first, count; /* filters or channels */
} Part;

enum { SHAPE_NUMBERS = 11 };
typedef struct {
    Py_ssize_t every, height, width, filters, size, pad, pool; /* every channel of an image */
    Py_ssize_t is_max, channels_first, groups;
    Py_ssize_t rounds;                /* to bfloat16: 0 for no, 1 for yes, 2 without the instruction for it */
    Py_ssize_t channels, channel; /* that a filter of the group at work reads, and the first of them */
    Part own;                     /* the filters of this group */
} Shape;

/* The windows on padded images; the channels of an image lie side by side. */
typedef struct {
    Py_ssize_t channels, size, stride; /* of a window; how far each is from the next */
    Py_ssize_t high, wide;             /* of a padded image */
    Py_ssize_t rows, columns;          /* of windows */
    Py_ssize_t line, run, fan;         /* floats of a row of an image, of a window, and of a window */
    Py_ssize_t image;                  /* floats of an image, with room for a vector behind it */
} Windows;

static Windows windows_of(const Shape *s, Py_ssize_t channels, int pooled)
{
    Windows w = {.channels = channels, .size = s->size, .stride = 1};
    if (pooled) {
        w.size += s->pool - 1;
        w.stride = s->pool;
    }
    w.high = s->height + 2 * s->pad;
    w.wide = s->width + 2 * s->pad;
    w.rows = (w.high - w.size) / w.stride + 1;
    w.columns = (w.wide - w.size) / w.stride + 1;
    w.line = w.wide * channels;
    w.run = w.size * channels;
    w.fan = w.size * w.run;
    w.image = (w.high * w.line + 2 * VEC - 1) / VEC * VEC;
    return w;
}

/* A scratch that is dealt out, in parts that begin with a cache line. */
typedef struct {
    float *base; /* or NULL, to count only */
    Py_ssize_t used;
} Scratch;

static Scratch open_scratch(float *given)
{
    uintptr_t line = VEC * sizeof(float);
    return (Scratch){given ? (float *)(((uintptr_t)given + line - 1) / line * line) : NULL, VEC};
}

/* Take a part, with room for a vector behind it. */
static float *take(Scratch *scratch, Py_ssize_t floats)
{
    float *part = scratch->base ? scratch->base + scratch->used - VEC : NULL;
    scratch->used += (floats + 2 * VEC - 1) / VEC * VEC;
    return part;
}

/* ---------------------------------------------------------------------------------------- images */

/* Copy the channels of an image that the group at work reads into the inside of a padded one. */
static void pad_image(const Shape *s, const Windows *w, const float *x, float *image)
{
    Py_ssize_t width = s->width, channels = s->channels;
    int together = !s->channels_first || s->every == 1; /* the channels of a pixel */
    for (Py_ssize_t i = 0; i < s->height; i++) {
        float *to = image + (s->pad + i) * w->line + s->pad * channels;
        if (together && channels == s->every) {
            memcpy(to, x + i * width * channels, (size_t)(width * channels) * sizeof *to);
            continue;
        }
        for (Py_ssize_t j = 0; j < width && together; j++)
            memcpy(to + j * channels, x + (i * width + j) * s->every + s->channel,
                   (size_t)channels * sizeof *to);
        for (Py_ssize_t c = 0; c < channels && !together; c++) {
            const float *from = x + ((s->channel + c) * s->height + i) * width;
            for (Py_ssize_t j = 0; j < width; j++) to[j * channels + c] = from[j];
        }
    }
}

/* Copy the inside of a padded image of w->channels channels to the channels of x from `first` on. */
static void unpad_image(const Shape *s, const Windows *w, const float *image, float *x, Py_ssize_t first)
{
    Py_ssize_t width = s->width, channels = s->every, some = w->channels;
    for (Py_ssize_t i = 0; i < s->height; i++) {
        const float *from = image + (s->pad + i) * w->line + s->pad * some;
        if (some == channels && (!s->channels_first || channels == 1)) {
            memcpy(x + i * width * channels, from, (size_t)(width * channels) * sizeof *x);
            continue;
        }
        for (Py_ssize_t c = 0; c < some; c++) {
            float *to = s->channels_first ? x + ((first + c) * s->height + i) * width
                                          : x + i * width * channels + first + c;
            Py_ssize_t step = s->channels_first ? 1 : channels;
            for (Py_ssize_t j = 0; j < width; j++) to[j * step] = from[j * some + c];
        }
    }
}
