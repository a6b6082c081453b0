#pragma unroll
    for (int k = 0; k < HELD; ++k) {
        const int at = thread + k * kAll;
        if (at < VECTORS) OUT[row * STEP + at] = MADE;
    }
