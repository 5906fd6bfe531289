/**
 * The model instances of one version of a bundle. A worker that looks rows up by itself uses one
 * area of the shared memories; the successor of one that died uses the same area.
 */
import type { OutputShape } from '../../lib/features/graph-plan.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ProviderOrder } from '../../lib/platform/onnx-providers.ts';
import type { SharedVersion } from '../../lib/store/shared-version.ts';
import type { ThreadNumbers } from '../stores/embedding-store.ts';
import { InstancePool } from './instance-pool.ts';
import type { WorkerOptions } from './model-worker.ts';
import { type BatchJob, type BatchResult, SlabChannel } from './slab-channel.ts';

export interface ModelPoolOptions extends Omit<WorkerOptions, 'resident' | 'tuning'> {
  readonly instances: number;
  readonly placements?: readonly ProviderOrder[];
  /**
   * Present when instances look rows up by themselves: the shared shards, and the thread numbers to
   * use.
   */
  readonly resident?: {
    readonly shards: readonly SharedVersion[];
    readonly threads: ThreadNumbers;
  };
  readonly logger: Logger;
  readonly clock?: Clock;
  /** The worker's script; tests replace it by one that dies. */
  readonly script?: URL;
}

const WORKER_SCRIPT = new URL('./model-worker.js', import.meta.url);

export class ModelPool extends InstancePool<readonly OutputShape[], BatchJob, BatchResult> {
  /**
   * The thread that looks rows up: the worker itself, or the main thread before it passes a batch
   * on.
   */
  readonly lookupThread: 'worker' | 'main';

  private constructor(options: ModelPoolOptions) {
    const { model, data, plan, rowsMax, resident, script = WORKER_SCRIPT, ...rest } = options;
    super({
      ...rest,
      script,
      source: plan.source,
      createChannel: () => new SlabChannel(),
      createWorkerData: (providers) => {
        const thread = resident?.threads.acquire() ?? 0;
        const tables = resident && { shards: resident.shards, thread };
        return {
          data: {
            model,
            data,
            plan,
            rowsMax,
            resident: tables,
            tuning: { providers },
          } satisfies WorkerOptions,
          onEnd: () => resident?.threads.release(thread),
        };
      },
    });
    this.lookupThread = resident === undefined ? 'main' : 'worker';
  }

  /**
   * Loads and warms up every instance. @throws CubeError when the graph does not load or does not
   * match the plan
   */
  static async startBundle(options: ModelPoolOptions): Promise<ModelPool> {
    const pool = new ModelPool(options);
    await pool.open();
    return pool;
  }

  /** The graph's outputs, the click output first. */
  get outputs(): readonly OutputShape[] {
    return this.ready;
  }

  /** Values of the click output in a row. */
  get clickWidth(): number {
    return this.outputs[0]?.width ?? 0;
  }
}
