/* A second context of a device. */
#ifndef BESIDE_H
#define BESIDE_H

#include "gpu.h"

#include "find.h"

/* Makes another context on device 0, whose primary context stays current. */
static inline void *make_context_beside(void) {
    int (*create)(void **, unsigned, int), (*current)(void **), (*set)(void *);
    void *before, *made;
    GPU(gpu_set_device(0));
    *(void **)&create = find("cuCtxCreate_v2");
    *(void **)&current = find("cuCtxGetCurrent");
    *(void **)&set = find("cuCtxSetCurrent");
    GPU(current(&before));
    GPU(create(&made, 0, 0));
    GPU(set(before));
    return made;
}

#endif
