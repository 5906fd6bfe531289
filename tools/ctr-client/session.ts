/** What every kind of run begins with: the model's shape from its endpoint, the rows, and requests of them. */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { type FeatureSpec, readSlotSpec } from '../../lib/core/slots.ts';
import { readText } from '../../lib/platform/files.ts';
import { stopOnSignal } from '../../lib/platform/lifecycle.ts';
import { type Progress, startProgress } from '../../lib/platform/progress.ts';
import type { Flags } from './flags.ts';
import { prepareRequests, type Request } from './load/traffic.ts';
import type { Caller } from './protocols/caller.ts';
import { HttpEndpoint } from './protocols/http-endpoint.ts';
import { askModelShape, type ModelShape } from './protocols/model-shape.ts';
import { openCaller } from './protocols/open-caller.ts';
import { checkWritable } from './reports/scores-file.ts';
import { type RowsFile, readRowsFile } from './rows/rows-file.ts';

/** As a shell says of a process that was stopped by Ctrl-C. */
export const EXIT_INTERRUPTED = 130;
const CONNECTIONS_OF_QUESTIONS = 1;

export class Session {
  readonly flags: Flags;
  readonly rows: RowsFile;
  readonly stop: AbortSignal;
  readonly #release: () => void;
  readonly #shape: ModelShape;
  readonly #spec: FeatureSpec | undefined;
  readonly #callers: Caller[] = [];

  private constructor(
    flags: Flags,
    read: { rows: RowsFile; shape: ModelShape; spec: FeatureSpec | undefined },
  ) {
    this.flags = flags;
    this.rows = read.rows;
    this.#shape = read.shape;
    this.#spec = read.spec;
    const { signal, release } = stopOnSignal();
    this.stop = signal;
    this.#release = release;
  }

  /** @throws CubeError when nobody answers, and for rows and files that are not as they should be */
  static async open(flags: Flags): Promise<Session> {
    const shape = await askShape(flags.endpoint, flags);
    if (flags.output !== undefined) checkWritable('--output', flags.output);
    if (flags.chart !== undefined) checkWritable('--chart', flags.chart);
    const spec = flags.slots === undefined ? undefined : readSpec(flags.slots);
    const columns = shape.slotNum + shape.denseNum;
    return new Session(flags, {
      rows: await readRowsFile(flags.rows, columns, flags.limit),
      ...{ shape, spec },
    });
  }

  get rowCount(): number {
    return this.rows.count;
  }

  /** Requests of all rows to the endpoint, or to another one that serves such a model. */
  async requests(batchRows: number, concurrency: number, url?: string): Promise<Request[]> {
    const { flags } = this;
    const shape = url === undefined ? this.#shape : await askShape(url, flags);
    const target = {
      ...{ url: url ?? flags.endpoint, shape },
      ...{ connectionsMax: concurrency, timeoutMs: flags.timeoutMs },
    };
    const caller = openCaller(flags.protocol, target, this.rows, this.#spec);
    this.#callers.push(caller);
    return prepareRequests(caller, this.rowCount, batchRows);
  }

  /** Of one pass over the rows; by time nobody knows how many there will be. */
  progress(title: string): Progress {
    return startProgress(title, this.flags.duration === undefined ? this.rowCount : 0, 'rows');
  }

  get warmUpMs(): number {
    return this.flags.warmUp * 1_000;
  }

  /** Ends all connections. */
  close(): void {
    for (const caller of this.#callers) caller.close();
    this.#release();
  }
}

async function askShape(url: string, { model, timeoutMs }: Flags): Promise<ModelShape> {
  const endpoint = new HttpEndpoint({ url, timeoutMs, connectionsMax: CONNECTIONS_OF_QUESTIONS });
  try {
    return await askModelShape(endpoint, model);
  } finally {
    endpoint.close();
  }
}

function readSpec(path: string): FeatureSpec {
  const { features } = readSlotSpec(JsonReader.parse(readText(path), path));
  if (features !== undefined) return features;
  const why = 'the model was pruned without features.json';
  throw new CubeError('INVALID_ARGUMENT', `${path}: has no features: ${why}; use --protocol ctr`);
}
