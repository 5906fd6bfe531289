/**
 * A loaded version whose requests are tensors: a graph, a graph with declared inputs and outputs,
 * or an ensemble of such models.
 */
import type { GraphSignature } from '../../lib/core/graph-signature.ts';
import type { GraphCall, GraphPrediction } from './loaded-graph.ts';
import type { PredictOptions } from './prediction.ts';
import type { VersionUse } from './version-use.ts';

/** What Triton's `dynamic_batching` says of the order of requests. */
export interface Scheduling {
  /** 0: requests have no priorities. */
  readonly priorityLevels: number;
  /** The level of requests without one, and of those with an unknown one; 1 is the most urgent. */
  readonly defaultPriorityLevel: number;
  /** Answers leave in the order in which the requests entered batches. */
  readonly preserveOrdering: boolean;
  /** The timeout in a request limits the wait in the queue, where its policy allows that. */
  readonly hasQueuePolicy: boolean;
}

export interface TensorModel extends VersionUse {
  /** The tensors of requests; batched ones include the batch. */
  readonly signature: GraphSignature;
  /** Whether the first dimension of every tensor is the batch. */
  readonly isBatched: boolean;
  /** The labels of the classes of an output, for requests that ask for classes. */
  readonly labels?: ReadonlyMap<string, readonly string[]>;
  /** The timeout in a request only limits its wait in the queue. */
  readonly limitsQueueTimeout?: boolean;
  readonly scheduling?: Scheduling | undefined;
  /** Rows of the largest batch by the model's configuration; larger requests are split. */
  readonly declaredMaxBatch?: number;
  /** Inputs that a request may leave out. */
  readonly optionalInputs?: ReadonlyMap<string, unknown>;
  /** The steps of an ensemble, as its configuration has them. */
  readonly steps?: readonly object[];

  /**
   * @throws CubeError INVALID_ARGUMENT naming the tensor, OVERLOADED, DEADLINE_EXCEEDED,
   *   UNAVAILABLE
   */
  predict(call: GraphCall, options: PredictOptions): Promise<GraphPrediction>;

  /** Why requests fail: a step of the ensemble is not served, or does not fit any more. */
  findMissingStep?(): string | undefined;

  /**
   * Keeps every model that a request needs in use, also the steps of an ensemble, as they are now.
   * `release` must follow.
   * @throws CubeError NOT_READY naming a step that is not loaded, or does not fit any more
   */
  pin?(): PinnedModel;
}

/** A model whose versions stay loaded until `release`. */
export interface PinnedModel {
  predict(call: GraphCall, options: PredictOptions): Promise<GraphPrediction>;
  release(): void;
}

/** Keeps a model in use, with the steps of an ensemble. @throws CubeError NOT_READY */
export function pinModel(model: TensorModel): PinnedModel {
  if (model.pin !== undefined) return model.pin();
  model.acquire();
  return {
    predict: (call, options) => model.predict(call, options),
    release: () => model.release(),
  };
}
