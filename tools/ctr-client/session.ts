/** The start of every run: fetches the model's shape, reads the rows, prepares requests. */
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { type FeatureSpec, readSlotSpec } from '../../lib/core/slots.ts';
import { readText } from '../../lib/platform/files.ts';
import { abortOnSignal } from '../../lib/platform/lifecycle.ts';
import { type Progress, startProgress } from '../../lib/platform/progress.ts';
import { createCallerCredentials } from '../../lib/rpc/credential-options.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import type { Flags } from './flags.ts';
import {
  type PreparedRequest,
  prepareReplay,
  prepareRequests,
  type WorkShare,
} from './load/load-run.ts';
import { HttpEndpoint } from './protocols/http-endpoint.ts';
import { fetchFeatures, fetchModelShape, type ModelShape } from './protocols/model-shape.ts';
import { needsFeatures, openProtocolClient } from './protocols/open-protocol.ts';
import type { ProtocolClient } from './protocols/protocol-client.ts';
import { checkWritable } from './reports/scores-file.ts';
import { NO_KEYS, type RowKeys, readRowKeys } from './rows/experiment-keys.ts';
import { type RecordedRequest, readRecording } from './rows/recording.ts';
import { type RowsFile, readRowsFile } from './rows/rows-file.ts';
import { WorkerThreads } from './worker-threads.ts';

/** Exit code of a process that Ctrl-C stopped, by convention of shells. */
export const EXIT_INTERRUPTED = 130;
const METADATA_CONNECTIONS = 1;

/** What a worker gets instead of reading rows and catching signals itself. */
export interface WorkerStart {
  readonly rows: RowsFile;
  readonly recorded: readonly RecordedRequest[] | undefined;
  readonly share: WorkShare;
  readonly signal: AbortSignal;
  readonly release: () => void;
}

export class Session {
  readonly flags: Flags;
  readonly rows: RowsFile;
  readonly stop: AbortSignal;
  /** With --workers; undefined: this thread sends the requests. */
  readonly workers: WorkerThreads | undefined;
  readonly #release: () => void;
  readonly #rowKeys: RowKeys;
  /** With --replay. */
  readonly #recorded: readonly RecordedRequest[] | undefined;
  readonly #shape: ModelShape;
  readonly #credentials: Credentials;
  readonly #spec: FeatureSpec | undefined;
  readonly #callers: ProtocolClient[] = [];
  readonly #share: WorkShare | undefined;

  private constructor(
    flags: Flags,
    read: {
      rows: RowsFile;
      recorded: readonly RecordedRequest[] | undefined;
      rowKeys: RowKeys;
      shape: ModelShape;
      spec: FeatureSpec | undefined;
      credentials: Credentials;
    },
    worker?: WorkerStart,
  ) {
    this.#credentials = read.credentials;
    this.flags = flags;
    this.rows = read.rows;
    this.#rowKeys = read.rowKeys;
    this.#recorded = read.recorded;
    this.#shape = read.shape;
    this.#spec = read.spec;
    this.#share = worker?.share;
    const { signal, release } = worker ?? abortOnSignal();
    this.stop = signal;
    this.#release = release;
    const isShared = worker === undefined && flags.workers > 1;
    this.workers = isShared ? new WorkerThreads(flags, read, signal) : undefined;
  }

  /** @throws CubeError when the endpoint does not answer, and for invalid rows and files */
  static async open(flags: Flags, worker?: WorkerStart): Promise<Session> {
    const credentials = createCallerCredentials(flags);
    const { shape, spec } = await requestModel(flags, credentials);
    if (flags.output !== undefined) checkWritable('--output', flags.output);
    if (flags.chart !== undefined) checkWritable('--chart', flags.chart);
    if (flags.profile !== undefined) checkWritable('--profile', flags.profile);
    const columns = shape.slotNum + shape.denseNum;
    const { rows, recorded } = worker ?? (await readRows(flags, columns));
    if (flags.byVariant === true && rows.labels === undefined) {
      throw new CubeError('INVALID_ARGUMENT', `--by-variant: ${rows.source} has no labels`);
    }
    const { experimentKey, protocol } = flags;
    const isAscii = protocol === 'ctr-grpc';
    const rowKeys =
      experimentKey === undefined ? NO_KEYS : readRowKeys(rows, experimentKey, isAscii);
    return new Session(flags, { rows, recorded, rowKeys, shape, spec, credentials }, worker);
  }

  get rowCount(): number {
    return this.rows.count;
  }

  /**
   * Requests with all rows for the endpoint, or for `url`, which must serve a model of equal shape.
   */
  async prepareRequests(
    batchRows: number,
    concurrency: number,
    url?: string,
  ): Promise<PreparedRequest[]> {
    const { flags } = this;
    const shape =
      url === undefined
        ? this.#shape
        : await withEndpoint(url, flags, this.#credentials, (endpoint) =>
            fetchModelShape(endpoint, flags.model),
          );
    const target = {
      url: url ?? flags.endpoint,
      shape,
      connectionsMax: concurrency,
      timeoutMs: flags.timeoutMs,
      credentials: this.#credentials,
      profile: flags.profile !== undefined,
    };
    const caller = openProtocolClient(flags.protocol, target, this.rows, this.#spec);
    this.#callers.push(caller);
    if (this.#recorded !== undefined) {
      const { replaySpeed = 1 } = flags;
      return prepareReplay(caller, this.#recorded, replaySpeed, this.#rowKeys, this.#share);
    }
    return prepareRequests(caller, this.rowCount, batchRows, this.#rowKeys, this.#share);
  }

  /** Progress of one pass over the rows; without a total when the run is limited by time. */
  startProgress(title: string): Progress {
    return startProgress(title, this.flags.duration === undefined ? this.rowCount : 0, 'rows');
  }

  get warmUpMs(): number {
    return this.flags.warmUp * 1_000;
  }

  /** Closes all connections. */
  async close(): Promise<void> {
    await this.workers?.close();
    for (const caller of this.#callers) caller.close();
    this.#release();
  }
}

async function readRows(
  { rows: path, replay, limit }: Flags,
  columns: number,
): Promise<Pick<WorkerStart, 'rows' | 'recorded'>> {
  if (replay === undefined) {
    const rows = await readRowsFile(requireDefined(path, '--rows'), columns, limit);
    return { rows, recorded: undefined };
  }
  const { rows, requests } = await readRecording(replay, limit);
  return { rows, recorded: requests };
}

/** The spec of --slots, or else of the endpoint where the protocol needs one. */
function requestModel(
  flags: Flags,
  credentials: Credentials,
): Promise<{ shape: ModelShape; spec: FeatureSpec | undefined }> {
  const { endpoint: url, slots, protocol, model } = flags;
  return withEndpoint(url, flags, credentials, async (endpoint) => {
    const shape = await fetchModelShape(endpoint, model);
    if (slots !== undefined) return { shape, spec: readSpec(slots) };
    const isNeeded = needsFeatures(protocol) && shape.takesFeatures;
    return { shape, spec: isNeeded ? await fetchFeatures(endpoint, shape.name) : undefined };
  });
}

async function withEndpoint<T>(
  url: string,
  { timeoutMs }: Flags,
  credentials: Credentials,
  request: (endpoint: HttpEndpoint) => Promise<T>,
): Promise<T> {
  const connectionsMax = METADATA_CONNECTIONS;
  const endpoint = new HttpEndpoint({ url, timeoutMs, connectionsMax, credentials });
  try {
    return await request(endpoint);
  } finally {
    endpoint.close();
  }
}

function readSpec(path: string): FeatureSpec {
  const { features } = readSlotSpec(JsonReader.parseFile(readText(path), path));
  if (features !== undefined) return features;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${path} has no features, because the model was pruned without features.json; ` +
      'use --protocol ctr',
  );
}
