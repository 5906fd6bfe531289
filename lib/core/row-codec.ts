/** Rows of embedding values as the bytes that layers store, by dtype (docs/formats/layer.md). */
import type { TableDtype } from './manifest.ts';

/** Bytes of a stored row: a multiple of 4; 0 for dtype bytes, whose values have any length. */
export function rowBytesOf(dtype: TableDtype, dim: number): number {
  switch (dtype) {
    case 'f32':
      return 4 * dim;
    case 'f16':
    case 'bf16':
      return 4 * Math.ceil(dim / 2);
    case 'i8':
      return 4 + 4 * Math.ceil(dim / 4);
    case 'bytes':
      return 0;
  }
}
