/** What the server and its conversion thread say to each other: one job, one answer, then the thread ends. */
import type { ErrorCode } from '../lib/core/errors.ts';
import type { TableDtype } from '../lib/core/manifest.ts';
import type { CubeIndexFile } from '../lib/store/cube-dict.ts';

/** Read one of Cube's directories and write it as a layer file. */
export interface ConversionJob {
  readonly source: string;
  /** Shaped as a data folder. */
  readonly target: string;
  readonly bundle: string;
  readonly table: string;
  readonly shardIndex: number;
  readonly shardNum: number;
  /** Laid out so that rows can stay on disk. */
  readonly indexed: boolean;
}

export interface ConvertedDict {
  readonly contentId: string;
  readonly bytes: number;
  readonly sha256: string;
  readonly rows: number;
  readonly dim: number;
  readonly dtype: TableDtype;
  readonly indexFiles: readonly CubeIndexFile[];
}

export type ConversionAnswer =
  | { readonly ok: true; readonly converted: ConvertedDict }
  | { readonly ok: false; readonly code: ErrorCode; readonly message: string };
