/**
 * The life of a worker thread that runs one graph after another. A start message loads a graph;
 * batches follow; a stop message releases the graph, and then the thread can be started again. All
 * state of a graph belongs to its `ThreadGraph`, so that nothing of it can reach the next one.
 */
import type { MessagePort } from 'node:worker_threads';
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { collectGarbage } from '../../lib/platform/collect-garbage.ts';
import type {
  FailedReply,
  ReadyMessage,
  ReleasedMessage,
  StartMessage,
  StopMessage,
} from './model-instance.ts';
import type { EndMessage } from './spare-threads.ts';

const GARBAGE_BYTES_MAX = 16 << 20;

/** A graph while it is loaded. */
export interface ThreadGraph<Ready, Batch> {
  /** What the reply to the start says. */
  readonly ready: Ready;
  /** Bytes of its files, of which the thread had copies. */
  readonly fileBytes: number;
  /** Whether it looked up in tables of other threads. */
  readonly sharesTables: boolean;
  /**
   * Called in the order of the messages. After a stop message, which is the last, the graph
   * releases everything and calls `onReleased`. An error of that must end the thread.
   */
  handle(request: Batch | StopMessage): void;
}

/** @param load nothing stays behind when it fails, apart from what ends with the thread */
export function runGraphs<Options, Ready, Batch extends { kind: 'run' } | number>(
  port: MessagePort,
  load: (options: Options, onReleased: () => void) => Promise<ThreadGraph<Ready, Batch>>,
): void {
  let graph: ThreadGraph<Ready, Batch> | undefined;
  /** Copies of files of released graphs that may not be collected yet. */
  let garbageBytes = 0;
  const finishRelease = async (sharedTables: boolean): Promise<void> => {
    // Views of tables would keep their memory after the version is unloaded.
    if (sharedTables || garbageBytes >= GARBAGE_BYTES_MAX) {
      await collectGarbage();
      garbageBytes = 0;
    }
    port.postMessage({ kind: 'released' } satisfies ReleasedMessage);
  };
  const onReleased = (): void => {
    const { fileBytes, sharesTables } = requireDefined(graph, 'the released graph');
    garbageBytes += fileBytes;
    graph = undefined;
    // The functions that call this one still refer to the graph.
    setImmediate(() => void finishRelease(sharesTables));
  };
  const start = async (options: Options): Promise<void> => {
    try {
      graph = await load(options, onReleased);
      port.postMessage({ kind: 'ready', ready: graph.ready } satisfies ReadyMessage<Ready>);
    } catch (error) {
      replyFailure(port, CubeError.from(error).code, error);
      port.close();
    }
  };
  port.on('message', (request: Batch | StopMessage | StartMessage<Options> | EndMessage) => {
    if (isStart(request)) void start(request.options);
    else if (isEnd(request)) port.close();
    else requireDefined(graph, 'the loaded graph').handle(request);
  });
}

export function countFileBytes(model: Uint8Array, data: ReadonlyMap<string, Uint8Array>): number {
  let bytes = model.length;
  for (const file of data.values()) bytes += file.length;
  return bytes;
}

type OtherMessage = number | { readonly kind: string };

function isStart<Options>(
  request: OtherMessage | StartMessage<Options>,
): request is StartMessage<Options> {
  return typeof request === 'object' && request.kind === 'start';
}

function isEnd(request: OtherMessage | EndMessage): request is EndMessage {
  return typeof request === 'object' && request.kind === 'end';
}

export function replyFailure(port: MessagePort, code: CubeError['code'], error: unknown): void {
  const message = CubeError.from(error).message;
  port.postMessage({ kind: 'failed', code, message } satisfies FailedReply);
}
