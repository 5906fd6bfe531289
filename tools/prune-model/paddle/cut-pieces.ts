/** A program and where it was cut, as the steps behind the cut share it. */
import type { Lookup } from './lookups.ts';
import type { Parameters } from './parameters.ts';
import type { CutProgram } from './program-cutter.ts';
import type { ProgramGraph } from './program-graph.ts';

export interface CutPieces {
  /** Path of the full program. */
  readonly path: string;
  readonly graph: ProgramGraph;
  readonly parameters: Parameters;
  readonly lookups: readonly Lookup[];
  readonly cut: CutProgram;
}
