/** A request for a bundle: rows of keys on their way through the batches, and its results. */
import type { KeyedRows } from '../../lib/core/feature-rows.ts';
import type { OutputShape } from '../../lib/features/graph-plan.ts';
import type { OutcomeCounts } from './batch-buffers.ts';
import { QueuedRequest, type QueueEntry } from './queued-request.ts';

export class EngineRequest extends QueuedRequest {
  readonly rows: KeyedRows;
  /** One for each output of the graph. */
  readonly outputs: readonly Float32Array[];
  readonly counts: OutcomeCounts = { unseen: 0, unavailable: 0 };
  /**
   * Counts of hit, unseen and unavailable for each position of a row's keys, when the caller wants
   * them.
   */
  readonly outcomesByKey: Uint32Array | undefined;
  /** Summed over the slices that were looked up, before their batches run. */
  unavailableLookups = 0;

  constructor(
    rows: KeyedRows,
    entry: QueueEntry,
    shape: { outputs: readonly OutputShape[]; keyNum: number },
  ) {
    super(rows.rowCount, entry);
    this.rows = rows;
    this.outputs = shape.outputs.map(({ width }) => new Float32Array(rows.rowCount * width));
    this.outcomesByKey = entry.options.slotOutcomes ? new Uint32Array(3 * shape.keyNum) : undefined;
  }
}
