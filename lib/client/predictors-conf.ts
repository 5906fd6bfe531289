/**
 * Reads predictors.prototxt, the configuration of Paddle Serving's C++ clients. A variant takes
 * every field that it does not set from `default_variant_conf`. Unknown fields and invalid values
 * are refused, with file and line; fields that have no effect are listed.
 */

import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import { parseTextFormat, type TextMessage } from '../../proto/text-format.ts';
import { CubeError } from '../core/errors.ts';
import { suggestNames } from '../core/nearest-name.ts';
import { LOAD_BALANCERS, type LoadBalancer } from './call-policy.ts';
import { CONNECTION_TYPES, type ConnectionType } from './connections.ts';
import type { CompressType, ServiceProtocol } from './service-transport.ts';

const PROTOCOLS: Readonly<Record<string, ServiceProtocol>> = {
  baidu_std: 'baidu_std',
  http: 'http',
  'h2:grpc': 'grpc',
};
const ROUTER = 'WeightedRandomRender';
const GZIP = 2;
const INT32_MAX = 0x7fff_ffff;
const PREDICTORS_MAX = 1_000;
const VARIANTS_MAX = 1_000;

export interface VariantConf {
  readonly tag: string;
  /** A name of servers, for example `list://host:port`. */
  readonly cluster: string;
  readonly loadBalancer: LoadBalancer;
  readonly protocol: ServiceProtocol;
  readonly connectionType: ConnectionType;
  readonly connectTimeoutMs: number;
  readonly rpcTimeoutMs: number;
  /** Most other servers that a call is sent to after failures. */
  readonly connectRetryMax: number;
  readonly idleConnectionsMax: number;
  /** Milliseconds without an answer until another server is asked too; -1: never. */
  readonly hedgeMs: number;
  readonly hedgeMax: number;
  readonly compressType: CompressType;
  /** Rows of each part of a request that is split; 0: requests are never split. */
  readonly packageSize: number;
  /** Most parts of a request. */
  readonly channelsMax: number;
}

export interface PredictorConf {
  readonly name: string;
  /** The full name of the service that the servers have. */
  readonly service: string;
  readonly variants: readonly VariantConf[];
  /** Index = variant. */
  readonly weights: readonly number[];
}

/** A field without effect. */
export interface IgnoredField {
  /** `file:line field` */
  readonly setting: string;
  readonly reason: string;
}

export interface PredictorsConf {
  readonly predictors: readonly PredictorConf[];
  readonly ignored: readonly IgnoredField[];
}

/** What the SDK assumes where neither the variant nor the default sets a field. */
export const VARIANT_DEFAULTS: Omit<VariantConf, 'tag' | 'cluster'> = {
  loadBalancer: 'la',
  protocol: 'baidu_std',
  connectionType: 'pooled',
  connectTimeoutMs: 2_000,
  rpcTimeoutMs: 20_000,
  connectRetryMax: 2,
  idleConnectionsMax: 100,
  hedgeMs: -1,
  hedgeMax: 2,
  compressType: 0,
  packageSize: 20,
  channelsMax: 3,
};

/** @throws CubeError INVALID_ARGUMENT `source:line:column: …` */
export function parsePredictorsConf(text: string, source: string): PredictorsConf {
  const file = parseTextFormat(text, source);
  const ignored: IgnoredField[] = [];
  checkFields(file, ['default_variant_conf', 'predictors'], {}, ignored);
  const [base] = file.messages('default_variant_conf').slice(-1);
  const defaults = { tag: '', cluster: '', ...VARIANT_DEFAULTS };
  const inherited = base === undefined ? defaults : readVariant(base, defaults, ignored);
  const messages = file.messages('predictors');
  if (messages.length === 0) file.fail('no predictors; add predictors { … }');
  if (messages.length > PREDICTORS_MAX) file.fail(`more than ${PREDICTORS_MAX} predictors`);
  const predictors: PredictorConf[] = [];
  for (const message of messages) {
    const predictor = readPredictor(message, inherited, ignored);
    if (predictors.some(({ name }) => name === predictor.name)) {
      message.failField('name', `two predictors are named ${predictor.name}; rename one`);
    }
    predictors.push(predictor);
  }
  return { predictors, ignored };
}

/**
 * The weights of `variant_weight_list`, for example `50|30|20`.
 * @throws CubeError INVALID_ARGUMENT
 */
function parseWeights(text: string): number[] {
  const weights = text.split('|').map((part) => {
    if (/^\s*\d{1,9}\s*$/.test(part)) return Number(part);
    const got = JSON.stringify(part);
    throw new CubeError('INVALID_ARGUMENT', `expected weights like "50|30|20", got ${got}`);
  });
  if (weights.every((weight) => weight === 0)) {
    throw new CubeError('INVALID_ARGUMENT', 'all weights are 0; one must be greater');
  }
  return weights;
}

function readPredictor(
  message: TextMessage,
  inherited: VariantConf,
  ignored: IgnoredField[],
): PredictorConf {
  const fields = ['name', 'service_name', 'endpoint_router', 'variants'];
  checkFields(message, [...fields, 'weighted_random_render_conf'], {}, ignored);
  const name = message.string('name') ?? 'general_model';
  const service = message.string('service_name') ?? GENERAL_MODEL_SERVICE;
  const router = message.string('endpoint_router') ?? ROUTER;
  if (router !== ROUTER) {
    message.failField('endpoint_router', `endpoint_router: expected ${ROUTER}, got ${router}`);
  }
  const messages = message.messages('variants');
  if (messages.length === 0) message.fail(`predictor ${name} has no variants`);
  if (messages.length > VARIANTS_MAX) message.fail(`more than ${VARIANTS_MAX} variants`);
  const variants = messages.map((variant) => {
    const conf = readVariant(variant, inherited, ignored);
    if (conf.cluster === '') variant.fail(`variant ${conf.tag}: naming_conf has no cluster`);
    return checkVariant(variant, conf);
  });
  const weights = variants.length === 1 ? [1] : readWeights(message, variants.length);
  return { name, service, variants, weights };
}

function readWeights(message: TextMessage, variantCount: number): number[] {
  const [conf] = message.messages('weighted_random_render_conf').slice(-1);
  if (conf === undefined) {
    const text = `${variantCount} variants need weighted_random_render_conf with their weights`;
    return message.fail(text);
  }
  checkFields(conf, ['variant_weight_list'], {}, []);
  const list = 'variant_weight_list';
  let weights: number[] = [];
  try {
    weights = parseWeights(conf.string(list) ?? '50');
  } catch (error) {
    conf.failField(list, `${list}: ${CubeError.from(error).message}`);
  }
  if (weights.length === variantCount) return weights;
  const text = `${list} has ${weights.length} weights for ${variantCount} variants`;
  return conf.failField(list, text);
}

const SPLIT_REASON = 'variants with split_conf gave no predictors in the original SDK either';
const VARIANT_IGNORED: Readonly<Record<string, string>> = {
  split_conf: SPLIT_REASON,
  variant_router: 'the original SDK never read it',
};

function readVariant(
  message: TextMessage,
  inherited: VariantConf,
  ignored: IgnoredField[],
): VariantConf {
  const parts = ['connection_conf', 'naming_conf', 'rpc_parameter'];
  checkFields(message, ['tag', ...parts], VARIANT_IGNORED, ignored);
  let conf = { ...inherited, tag: message.string('tag') ?? inherited.tag };
  for (const part of message.messages('connection_conf')) {
    conf = { ...conf, ...readConnection(part, ignored) };
  }
  for (const part of message.messages('naming_conf')) {
    conf = { ...conf, ...readNaming(part, ignored) };
  }
  for (const part of message.messages('rpc_parameter')) {
    conf = { ...conf, ...readRpcParameter(part, ignored) };
  }
  return conf;
}

function readConnection(message: TextMessage, ignored: IgnoredField[]): Partial<VariantConf> {
  const read = {
    connectTimeoutMs: message.integer('connect_timeout_ms', 1, INT32_MAX),
    rpcTimeoutMs: message.integer('rpc_timeout_ms', 1, INT32_MAX),
    connectRetryMax: message.integer('connect_retry_count', 0, INT32_MAX),
    idleConnectionsMax: message.integer('max_connection_per_host', 1, 65_535),
    hedgeMs: message.integer('hedge_request_timeout_ms', -1, INT32_MAX),
    hedgeMax: message.integer('hedge_fetch_retry_count', 0, INT32_MAX),
    connectionType: readChoice(message, 'connection_type', CONNECTION_TYPES),
  };
  const fields = ['connect_timeout_ms', 'rpc_timeout_ms', 'connect_retry_count'];
  const hedges = ['hedge_request_timeout_ms', 'hedge_fetch_retry_count'];
  const known = [...fields, ...hedges, 'max_connection_per_host', 'connection_type'];
  checkFields(message, known, {}, ignored);
  return dropUnset(read);
}

function readNaming(message: TextMessage, ignored: IgnoredField[]): Partial<VariantConf> {
  const reasons = { cluster_filter_strategy: 'the original SDK never used it' };
  checkFields(message, ['load_balance_strategy', 'cluster'], reasons, ignored);
  return dropUnset({
    loadBalancer: readChoice(message, 'load_balance_strategy', LOAD_BALANCERS),
    cluster: message.string('cluster'),
  });
}

function readRpcParameter(message: TextMessage, ignored: IgnoredField[]): Partial<VariantConf> {
  const fields = ['compress_type', 'package_size', 'protocol', 'max_channel_per_request'];
  checkFields(message, fields, {}, ignored);
  const protocol = readChoice(message, 'protocol', Object.keys(PROTOCOLS));
  const compressType = message.integer('compress_type', 0, 4) as CompressType | undefined;
  return dropUnset({
    compressType,
    packageSize: message.integer('package_size', 0, INT32_MAX),
    protocol: protocol === undefined ? undefined : PROTOCOLS[protocol],
    channelsMax: message.integer('max_channel_per_request', 1, 1_000),
  });
}

function checkVariant(message: TextMessage, conf: VariantConf): VariantConf {
  const { protocol, compressType, tag } = conf;
  if (protocol !== 'baidu_std' && compressType !== 0 && compressType !== GZIP) {
    const text = `variant ${tag}: compress_type ${compressType}: http and h2:grpc allow 0 and 2`;
    message.fail(text);
  }
  return conf;
}

function readChoice<T extends string>(
  message: TextMessage,
  name: string,
  choices: readonly T[],
): T | undefined {
  const value = message.string(name);
  if (value === undefined || choices.includes(value as T)) return value as T | undefined;
  const hint = suggestNames(value, choices);
  return message.failField(name, `${name}: unknown value ${JSON.stringify(value)}; ${hint}`);
}

/** @param reasons why a known field has no effect */
function checkFields(
  message: TextMessage,
  known: readonly string[],
  reasons: Readonly<Record<string, string>>,
  ignored: IgnoredField[],
): void {
  for (const name of message.names.filter((one) => !known.includes(one))) {
    const reason = Object.hasOwn(reasons, name) ? reasons[name] : undefined;
    if (reason === undefined) {
      const hint = suggestNames(name, [...known, ...Object.keys(reasons)]);
      message.failField(name, `unknown field ${name}; ${hint}`);
    }
    ignored.push({ setting: `${message.getFieldLocation(name)} ${name}`, reason });
  }
}

type Present<T> = { [Key in keyof T]?: Exclude<T[Key], undefined> };

function dropUnset<T extends object>(fields: T): Present<T> {
  const set = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(set) as Present<T>;
}
