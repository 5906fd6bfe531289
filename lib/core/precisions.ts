/** The formats that a graph's weights can have while it is served. */
export const PRECISIONS = ['fp32', 'fp16', 'bf16', 'int8'] as const;
export type Precision = (typeof PRECISIONS)[number];
