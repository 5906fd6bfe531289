/**
 * A client of the general model service in the shape of `paddle_serving_client.Client`, which
 * Python users know: `load_client_config`, `connect`, `predict`. Methods have the Python spelling
 * too.
 */
import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import {
  decodeGeneralResponse,
  encodeGeneralRequest,
  type FeedTensor,
  type GeneralOutput,
} from '../../proto/general-model-client.ts';
import { CubeError } from '../core/errors.ts';
import type { TensorDim } from '../core/graph-signature.ts';
import { suggestNames } from '../core/nearest-name.ts';
import { fromByteTensor } from '../core/pipeline-tensor.ts';
import type { Credentials } from '../rpc/credentials.ts';
import { type ClientConf, type ClientVariable, readClientConf } from './client-conf.ts';
import type { ClientStats } from './client-stats.ts';
import { toInputTensor } from './feed-tensors.ts';
import { listServers } from './naming.ts';
import {
  type ConnectedVariant,
  checkLod,
  type FeedValue,
  type FetchedTensor,
} from './predictor.ts';
import { chooseVariant, connectVariant } from './predictor-variants.ts';
import { VARIANT_DEFAULTS } from './predictors-conf.ts';
import type { ClientLogger } from './replica.ts';
import type { ServiceProtocol } from './service-transport.ts';

export interface PaddleClientOptions {
  /** Default baidu_std, as in Python. */
  readonly protocol?: ServiceProtocol;
  readonly logger?: ClientLogger;
  /** API key of every call, and whether connections use TLS. Default: neither. */
  readonly credentials?: Credentials;
}

/** Values by alias. A key `<alias>.lod` has the offsets of the rows of `<alias>`. */
export type PaddleFeed = Readonly<Record<string, FeedValue>>;

export interface PaddleCallOptions {
  /** Offsets of the rows of inputs of variable length, by alias; as keys `<alias>.lod`. */
  readonly lod?: Readonly<Record<string, readonly number[]>>;
  /** For the logs of the servers. Default 0. */
  readonly logId?: bigint;
  /** For the whole call. Default: `setRpcTimeoutMs`. */
  readonly timeoutMs?: number;
  /** Cancels the call, which rejects with the signal's reason. */
  readonly signal?: AbortSignal;
}

/** Outputs by alias. */
export type PaddleResult = Readonly<Record<string, FetchedTensor>>;

/** What `predictWithTag` returns. */
export interface TaggedResult {
  readonly result: PaddleResult;
  /** The variant that answered. */
  readonly tag: string;
}

interface EngineResults {
  readonly tag: string;
  /** Engine → its outputs. */
  readonly engines: ReadonlyMap<string, PaddleResult>;
}

const RPC_TIMEOUT_MS = 200_000;
const RESPONSE_LIMITS = { tensors: 4096, values: 1 << 26 };
const LOD = '.lod';

export class PaddleClient {
  readonly #options: PaddleClientOptions;
  readonly #added: { tag: string; cluster: readonly string[]; weight: number }[] = [];
  #conf: ClientConf | undefined;
  #variants: readonly ConnectedVariant[] = [];
  #rpcTimeoutMs = RPC_TIMEOUT_MS;

  constructor(options: PaddleClientOptions = {}) {
    this.#options = options;
  }

  /**
   * Reads serving_client_conf.prototxt. Of several files the first has the inputs, the last the
   * outputs.
   * @param paths files, or their folders
   * @throws CubeError NOT_FOUND, INVALID_ARGUMENT with file, line and column
   */
  loadClientConfig(paths: string | readonly string[]): this {
    const [first, ...rest] = typeof paths === 'string' ? [paths] : paths;
    if (first === undefined) throw invalid('loadClientConfig: no path; give at least one');
    const { feeds, fetches } = readClientConf(first);
    const last = rest.at(-1);
    this.#conf = { feeds, fetches: last === undefined ? fetches : readClientConf(last).fetches };
    return this;
  }

  /** Adds servers that get a share of the calls, before `connect`. */
  addVariant(tag: string, cluster: readonly string[], weight: number): this {
    if (!Number.isInteger(weight) || weight < 0) {
      throw invalid(`variant ${tag}: expected a weight as an integer ≥ 0, got ${weight}`);
    }
    this.#added.push({ tag, cluster, weight });
    return this;
  }

  /** Default timeout of a call in milliseconds. Default 200000. */
  setRpcTimeoutMs(timeoutMs: number): this {
    if (!(timeoutMs > 0)) throw invalid(`rpc timeout: expected milliseconds > 0, got ${timeoutMs}`);
    this.#rpcTimeoutMs = timeoutMs;
    return this;
  }

  /**
   * Names the servers; connections are opened by the first calls.
   * @param endpoints host:port of each server; default: those of `addVariant`
   * @throws CubeError INVALID_ARGUMENT
   */
  connect(endpoints?: readonly string[]): this {
    if (this.#variants.length > 0) throw invalid('connect: the client is connected; release it');
    if (endpoints !== undefined && this.#added.length > 0) {
      throw invalid('connect: endpoints and addVariant exclude each other; use one of them');
    }
    const only = endpoints === undefined ? [] : [{ tag: 'default', cluster: endpoints, weight: 1 }];
    const chosen = [...this.#added, ...only];
    if (chosen.every(({ weight }) => weight === 0)) {
      throw invalid('connect: no servers; pass endpoints, or call addVariant with a weight > 0');
    }
    const { protocol = 'baidu_std', ...options } = this.#options;
    this.#added.splice(0, this.#added.length, ...chosen);
    this.#variants = chosen.map(({ tag, cluster }) => {
      const naming = listServers(cluster, `variant ${tag}`);
      const conf = { ...VARIANT_DEFAULTS, tag, cluster: cluster.join(), protocol };
      return connectVariant(GENERAL_MODEL_SERVICE, conf, naming, options);
    });
    return this;
  }

  getFeedNames(): string[] {
    return this.#getConf().feeds.map(({ alias }) => alias);
  }

  getFetchNames(): string[] {
    return this.#getConf().fetches.map(({ alias }) => alias);
  }

  /**
   * @param feed values by alias, with the types and shapes of the client configuration
   * @param fetch aliases of the outputs to return; empty: all
   * @param batch whether the first dimension of the values is the batch; if not, it is added
   * @throws CubeError INVALID_ARGUMENT naming the input; as the server failed; OVERLOADED,
   *   UNAVAILABLE, DEADLINE_EXCEEDED; UNSUPPORTED when several models answer (`predictEngines`)
   */
  async predict(
    feed: PaddleFeed,
    fetch: string | readonly string[] = [],
    batch = false,
    options: PaddleCallOptions = {},
  ): Promise<PaddleResult> {
    return (await this.predictWithTag(feed, fetch, batch, options)).result;
  }

  /** As `predict`, with the tag of the variant: Python's `need_variant_tag`. */
  async predictWithTag(
    feed: PaddleFeed,
    fetch: string | readonly string[] = [],
    batch = false,
    options: PaddleCallOptions = {},
  ): Promise<TaggedResult> {
    const { tag, engines } = await this.#run(feed, fetch, batch, options);
    const [result, ...others] = engines.values();
    if (result !== undefined && others.length === 0) return { result, tag };
    const names = [...engines.keys()].join(', ');
    throw new CubeError('UNSUPPORTED', `several models answered (${names}): use predictEngines`);
  }

  /** As `predict`, for services with several models: the outputs of each by its engine name. */
  async predictEngines(
    feed: PaddleFeed,
    fetch: string | readonly string[] = [],
    batch = false,
    options: PaddleCallOptions = {},
  ): Promise<Readonly<Record<string, PaddleResult>>> {
    return Object.fromEntries((await this.#run(feed, fetch, batch, options)).engines);
  }

  /** The counters of each variant since `connect`. */
  stats(): (ClientStats & { readonly tag: string })[] {
    return this.#variants.map(({ conf: { tag }, client }) => ({ tag, ...client.stats }));
  }

  /** Fails the calls in flight and closes all connections. */
  release(): void {
    for (const { client } of this.#variants) client.close();
    this.#variants = [];
    this.#added.length = 0;
  }

  load_client_config(paths: string | readonly string[]): this {
    return this.loadClientConfig(paths);
  }

  add_variant(tag: string, cluster: readonly string[], weight: number): this {
    return this.addVariant(tag, cluster, weight);
  }

  set_rpc_timeout_ms(timeoutMs: number): this {
    return this.setRpcTimeoutMs(timeoutMs);
  }

  get_feed_names(): string[] {
    return this.getFeedNames();
  }

  get_fetch_names(): string[] {
    return this.getFetchNames();
  }

  async #run(
    feed: PaddleFeed,
    fetch: string | readonly string[],
    batch: boolean,
    { lod = {}, logId = 0n, timeoutMs = this.#rpcTimeoutMs, signal }: PaddleCallOptions,
  ): Promise<EngineResults> {
    const conf = this.#getConf();
    const weights = this.#added.map(({ weight }) => weight);
    const variant = this.#variants[chooseVariant(weights, Math.random())];
    if (variant === undefined) throw invalid('predict: call connect first');
    const fetchNames = typeof fetch === 'string' ? [fetch] : fetch;
    const wanted = fetchNames.map((name) => requireVariable(conf.fetches, name, 'fetch'));
    const tensors = toFeedTensors(conf, feed, lod, batch);
    // Not every server knows the aliases of outputs: where there are some, all are fetched.
    const hasAliases = wanted.some(({ alias, name }) => alias !== name);
    const payload = encodeGeneralRequest(tensors, {
      fetchNames: hasAliases ? [] : fetchNames,
      logId,
    });
    const read = (bytes: Uint8Array) => decodeGeneralResponse(bytes, RESPONSE_LIMITS);
    const answer = await variant.client.call('inference', payload, read, { timeoutMs, signal });
    const results = answer.outputs.map((output): [string, PaddleResult] => {
      return [output.engineName, select(toResult(output, conf.fetches), fetchNames)];
    });
    return { tag: variant.conf.tag, engines: new Map(results) };
  }

  #getConf(): ClientConf {
    if (this.#conf === undefined) throw invalid('call loadClientConfig first');
    return this.#conf;
  }
}

function invalid(text: string): CubeError {
  return new CubeError('INVALID_ARGUMENT', text);
}

/** @throws CubeError INVALID_ARGUMENT naming the nearest variable */
function requireVariable(
  variables: readonly ClientVariable[],
  alias: string,
  what: string,
): ClientVariable {
  const found = variables.find((variable) => variable.alias === alias);
  if (found !== undefined) return found;
  const known = variables.map((variable) => variable.alias);
  throw invalid(`${what}: unknown name ${JSON.stringify(alias)}; ${suggestNames(alias, known)}`);
}

function toFeedTensors(
  { feeds }: ClientConf,
  feed: PaddleFeed,
  lods: Readonly<Record<string, readonly number[]>>,
  batch: boolean,
): FeedTensor[] {
  const isValue = (key: string): boolean =>
    !key.endsWith(LOD) || feeds.some(({ alias }) => alias === key);
  const given = new Map<string, readonly number[]>(Object.entries(lods));
  for (const [key, value] of Object.entries(feed)) {
    if (!isValue(key)) given.set(key.slice(0, -LOD.length), value as readonly number[]);
  }
  const values = Object.entries(feed).filter(([key]) => isValue(key));
  for (const alias of given.keys()) {
    if (!values.some(([key]) => key === alias)) throw invalid(`lod: the feed has no ${alias}`);
  }
  return values.map(([alias, value]) => {
    const variable = requireVariable(feeds, alias, 'feed');
    const lod = given.get(alias);
    return toFeedTensor(variable, value, lod === undefined ? undefined : [...lod], batch);
  });
}

/** A flat list or array gets the shape of the variable, after the dimension of the batch. */
function toFeedTensor(
  { name, alias, dataType, shape }: ClientVariable,
  value: FeedValue,
  lod: readonly number[] | undefined,
  batch: boolean,
): FeedTensor {
  const dims: TensorDim[] = shape.map((dim) => (dim < 0 ? '' : dim));
  const hasBatch = batch && dims[0] !== '';
  const tensor = toInputTensor(alias, value, { dataType, dims: hasBatch ? ['', ...dims] : dims });
  if (lod !== undefined) checkLod(alias, lod, tensor.shape[0] ?? 1);
  const dimensions = batch ? tensor.shape : [1, ...tensor.shape];
  return { ...tensor, name, aliasName: alias, shape: dimensions, lod };
}

function toResult({ tensors }: GeneralOutput, fetches: readonly ClientVariable[]): PaddleResult {
  const named = tensors.map((tensor): [string, FetchedTensor] => {
    const { aliasName, lod } = tensor;
    const variable = fetches.find(({ name }) => name === tensor.name);
    const alias = fetches.some((one) => one.alias === aliasName) ? aliasName : variable?.alias;
    const key = alias ?? (aliasName === '' ? tensor.name : aliasName);
    return [key, { ...fromByteTensor(tensor), ...(lod && { lod: Int32Array.from(lod) }) }];
  });
  return Object.fromEntries(named);
}

/** Keeps the outputs to fetch, in their order; none named: all. */
function select(result: PaddleResult, fetchNames: readonly string[]): PaddleResult {
  if (fetchNames.length === 0) return result;
  const kept = fetchNames.map((alias): [string, FetchedTensor] => {
    const tensor = Object.hasOwn(result, alias) ? result[alias] : undefined;
    if (tensor !== undefined) return [alias, tensor];
    const got = Object.keys(result).join(', ');
    throw new CubeError('NOT_FOUND', `fetch: the server returned no ${alias}, only ${got}`);
  });
  return Object.fromEntries(kept);
}
