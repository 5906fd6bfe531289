/**
 * Reads `controller.yaml` (JSON Schema in docs/schemas/controller.schema.json). Paths are relative
 * to the file. `cube-agent rollout` takes the policy of one bundle from flags instead.
 */
import { dirname, isAbsolute, resolve } from 'node:path';
import { checkName } from '../../lib/core/names.ts';
import { readText } from '../../lib/platform/files.ts';
import { parseYaml, type YamlNode } from '../../lib/platform/yaml.ts';
import { formatEndpoint, parseEndpoint } from '../../lib/rpc/endpoint.ts';
import { readTlsFields, TLS_FIELDS, type TlsFields } from '../fleet/tls-fields.ts';
import type { ChannelStep, RolloutPolicy } from './rollout-view.ts';
import type { HealthLimits } from './version-health.ts';

const CONFIG_BYTES_MAX = 1 << 20;
const DAY_MS = 86_400_000;
const BUNDLES_MAX = 100;

export interface BundleRolloutConfig {
  readonly name: string;
  readonly policy: RolloutPolicy;
  readonly health: HealthLimits;
  /** Serving processes whose metrics decide the health of a version, host:port. */
  readonly serving: readonly string[];
  /** Additional flags of `cube-agent gate`. */
  readonly gateFlags: readonly string[];
}

/**
 * The TLS certificate is used for calls to servers and agents, and for the controller's endpoint.
 */
export interface ControllerConfig extends TlsFields {
  readonly repository: string;
  readonly trustedKeys: string | undefined;
  readonly signingKey: string | undefined;
  readonly fleetFile: string;
  readonly bundles: readonly BundleRolloutConfig[];
  /** Roll out the newest version as soon as it is published. */
  readonly automatic: boolean;
  readonly listen: string | undefined;
  readonly tokenFile: string | undefined;
  readonly controlTokenFile: string | undefined;
  readonly agentTokenFile: string | undefined;
  readonly pollMs: number;
}

export const POLICY_DEFAULTS: RolloutPolicy = {
  channels: [{ channel: 'stable', holdMs: 0 }],
  replicas: 'all',
  gate: true,
  watchMs: 600_000,
  stagingMs: 3_600_000,
  gatingMs: 1_800_000,
  activatingMs: 120_000,
};

export const HEALTH_DEFAULTS: HealthLimits = {
  requestsMin: 200,
  errorRateMax: 0.02,
  unavailableMax: 0.01,
  unseenRiseMax: 0.05,
  scoreDriftMax: 0.25,
  p99MsMax: 1024,
};

const FIELDS = [
  'repository',
  'trusted-keys',
  'signing-key',
  'fleet',
  'bundles',
  'automatic',
  'listen',
  'token-file',
  'control-token-file',
  'agent-token-file',
  'poll-ms',
  ...TLS_FIELDS,
];
const BUNDLE_FIELDS = [
  'name',
  'channels',
  'replicas',
  'gate',
  'gate-flags',
  'serving',
  'watch-ms',
  'limits',
  'staging-ms',
  'gating-ms',
  'activating-ms',
];
const LIMIT_FIELDS = {
  'requests-min': 'requestsMin',
  'error-rate': 'errorRateMax',
  unavailable: 'unavailableMax',
  'unseen-rise': 'unseenRiseMax',
  'score-drift': 'scoreDriftMax',
  'p99-ms': 'p99MsMax',
} as const satisfies Readonly<Record<string, keyof HealthLimits>>;
/** Largest values: a share of 2 is a percentage by mistake. */
const LIMIT_MAXIMA: HealthLimits = {
  requestsMin: 1e9,
  errorRateMax: 1,
  unavailableMax: 1,
  unseenRiseMax: 1,
  scoreDriftMax: 1000,
  p99MsMax: 600_000,
};

/** @throws CubeError INVALID_ARGUMENT with the position in the file; NOT_FOUND */
export function readControllerConfig(path: string): ControllerConfig {
  return parseControllerConfig(readText(path, CONFIG_BYTES_MAX), path);
}

/** @param path of the file; relative paths start from its folder */
export function parseControllerConfig(text: string, path: string): ControllerConfig {
  const root = parseYaml(text, path);
  const fields = root.fields(FIELDS);
  const need = (name: string): YamlNode => fields.get(name) ?? root.fail(`${name} is missing`);
  const file = (node: YamlNode | undefined): string | undefined =>
    node && resolve(dirname(path), node.string());
  const repository = need('repository').string();
  const isFolder = !isAbsolute(repository) && !/^[a-z][a-z0-9+.-]*:\/\//i.test(repository);
  need('fleet');
  return {
    repository: isFolder ? resolve(dirname(path), repository) : repository,
    trustedKeys: file(fields.get('trusted-keys')),
    signingKey: file(fields.get('signing-key')),
    fleetFile: file(fields.get('fleet')) ?? '',
    bundles: readBundles(need('bundles')),
    automatic: fields.get('automatic')?.boolean() ?? true,
    listen: fields.get('listen')?.parse(normalizeEndpoint),
    tokenFile: file(fields.get('token-file')),
    controlTokenFile: file(fields.get('control-token-file')),
    agentTokenFile: file(fields.get('agent-token-file')),
    ...readTlsFields(root, fields, file),
    pollMs: fields.get('poll-ms')?.integer(50, 3_600_000) ?? 1000,
  };
}

function readBundles(node: YamlNode): BundleRolloutConfig[] {
  const items = node.items();
  if (items.length < 1 || items.length > BUNDLES_MAX) node.fail(`expected 1..${BUNDLES_MAX} items`);
  const bundles = items.map(readBundle);
  if (new Set(bundles.map(({ name }) => name)).size < bundles.length) {
    node.fail('a bundle is listed twice');
  }
  return bundles;
}

function readBundle(item: YamlNode): BundleRolloutConfig {
  const fields = item.fields(BUNDLE_FIELDS);
  const name = fields.get('name') ?? item.fail('name is missing');
  const millis = (field: string, other: number): number =>
    fields.get(field)?.integer(0, 30 * DAY_MS) ?? other;
  const channels = fields.get('channels')?.items().map(readChannel);
  if (channels?.length === 0) item.fail('channels: expected at least one');
  const { stagingMs, gatingMs, activatingMs, watchMs } = POLICY_DEFAULTS;
  return {
    name: name.parse((text) => checkName(text, 'bundle')),
    policy: {
      channels: channels ?? POLICY_DEFAULTS.channels,
      replicas: fields.get('replicas')?.parse(parseReplicas) ?? POLICY_DEFAULTS.replicas,
      gate: fields.get('gate')?.boolean() ?? POLICY_DEFAULTS.gate,
      watchMs: millis('watch-ms', watchMs),
      stagingMs: millis('staging-ms', stagingMs),
      gatingMs: millis('gating-ms', gatingMs),
      activatingMs: millis('activating-ms', activatingMs),
    },
    health: readLimits(fields.get('limits')),
    serving: (fields.get('serving')?.itemsOrOne() ?? []).map((e) => e.parse(normalizeEndpoint)),
    gateFlags: (fields.get('gate-flags')?.items() ?? []).map((flag) => flag.string()),
  };
}

function readChannel(node: YamlNode): ChannelStep {
  const fields = node.fields(['name', 'hold-ms']);
  const name = fields.get('name') ?? node.fail('name is missing');
  return {
    channel: name.parse((text) => checkName(text, 'channel')),
    holdMs: fields.get('hold-ms')?.integer(0, 30 * DAY_MS) ?? 0,
  };
}

/**
 * Parses the number of replicas per shard, or "all".
 * @throws Error for any other text
 */
export function parseReplicas(text: string): number | 'all' {
  if (text === 'all') return 'all';
  if (/^[1-9]\d{0,3}$/.test(text)) return Number(text);
  throw new Error('expected "all" or a number from 1 to 9999');
}

function readLimits(node: YamlNode | undefined): HealthLimits {
  const limits = { ...HEALTH_DEFAULTS };
  for (const [name, field] of node?.fields(Object.keys(LIMIT_FIELDS)) ?? []) {
    const limit = LIMIT_FIELDS[name as keyof typeof LIMIT_FIELDS];
    const value = field.number();
    const max = LIMIT_MAXIMA[limit];
    if (value < 0 || value > max) field.fail(`expected a number in 0..${max}, got ${value}`);
    limits[limit] = value;
  }
  return limits;
}

function normalizeEndpoint(text: string): string {
  const { host, port } = parseEndpoint(text);
  return formatEndpoint(host, port);
}
