/*
 * What the stand-in for cuBLAS must answer; its other functions succeed and do
 * nothing. Cost: none.
 */

static int the_handle;

int cublasCreate_v2(void **handle) {
    *handle = &the_handle;
    return 0;
}

/* The default mode of a handle. */
int cublasGetMathMode(void *handle, int *mode) {
    (void)handle;
    *mode = 0;
    return 0;
}

/* Scalars are on the host. */
int cublasGetPointerMode_v2(void *handle, int *mode) {
    (void)handle;
    *mode = 0;
    return 0;
}
