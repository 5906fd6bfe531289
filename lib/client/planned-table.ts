/** A table of a version as a lookup sees it. */
import type { TableDtype } from '../core/manifest.ts';

/** A table as its rows are answered. */
export interface PlannedTable {
  readonly name: string;
  readonly dim: number;
  /** Of the rows as answered. */
  readonly dtype: TableDtype;
  /** 0 for dtype bytes. */
  readonly rowBytes: number;
  /** The row of an unavailable key: the default row; zeros where rows are answered as stored. */
  readonly fillRow: Float32Array | Uint32Array;
  /** A request's group up to its count: name and the count's tag. */
  readonly groupHead: Uint8Array;
}
