    VECTOR LOADED[HELD] = {};
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
        const int at = thread + k * kAll;
        if (at < VECTORS) LOADED[k] = IN[row * STEP + at];
        sum += value(LOADED[k]);
    }
