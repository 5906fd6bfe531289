/** What stands between reading a request and answering it: the same for every door. */
import type { FeatureRows, KeyedRows } from '../../lib/core/features.ts';
import type { Prediction } from '../engine/predictor.ts';
import type { LoadedBundle } from '../models/bundle.ts';

/** What a door read from a request, and how it will say the answer. */
export interface Question<T> {
  readonly bundle: LoadedBundle;
  readonly rows: FeatureRows | KeyedRows;
  /** From the body; the shorter of this and the call's own holds. */
  readonly timeoutMs?: number;
  /** 0 goes first. */
  readonly priority?: number;
  /** Outcomes slot by slot are wanted. */
  readonly detail?: boolean;
  answer(prediction: Prediction): T;
}
