/**
 * The configuration of an agent: `agent.yaml` or the flags of `cube-agent run` (JSON Schema in
 * docs/schemas/agent.schema.json). Fields have the names of the flags; paths are relative to the
 * file.
 */
import { dirname, isAbsolute, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { SHARD_NUM_MAX } from '../../lib/core/layer-format.ts';
import { checkName } from '../../lib/core/names.ts';
import { parseByteCount } from '../../lib/platform/cli.ts';
import { readText } from '../../lib/platform/files.ts';
import { parseYaml, type YamlNode } from '../../lib/platform/yaml.ts';
import { formatEndpoint, parseEndpoint } from '../../lib/rpc/endpoint.ts';
import { readTlsFields, TLS_FIELDS, type TlsFields } from '../fleet/tls-fields.ts';
import type { RetentionPolicy } from './plan.ts';

const CONFIG_BYTES_MAX = 1 << 20;
const BUNDLES_MAX = 100;
const SERVERS_MAX = 1000;

/** The channels of a bundle. The first one decides the active version of the servers. */
export interface BundleConfig {
  readonly name: string;
  readonly channels: readonly string[];
}

/** A cube-server that the agent runs itself. */
export interface SupervisedServer {
  readonly shard: number;
  readonly shardNum: number;
  /** Address of its control calls. */
  readonly control: string;
  readonly host: string;
  readonly port: number;
  readonly adminPort: number | undefined;
  /** Additional flags of cube-server, passed on unchanged. */
  readonly flags: readonly string[];
}

/**
 * The TLS certificate is used for calls to servers, the agent's endpoint and the servers it runs.
 */
export interface AgentConfig extends TlsFields {
  readonly repository: string;
  /**
   * File or folder with public keys of publishers. Versions without their signature are refused.
   */
  readonly trustedKeys: string | undefined;
  readonly dataFolder: string;
  readonly bundles: readonly BundleConfig[];
  /** Control addresses, host:port. */
  readonly servers: readonly string[];
  /** The servers that the agent runs itself. */
  readonly supervised: readonly SupervisedServer[];
  /** Token for calls to the servers. */
  readonly controlTokenFile: string | undefined;
  /** Address of the agent's endpoint; undefined: it has none. */
  readonly listen: string | undefined;
  /**
   * Token that callers of the agent need. Without it and TLS only callers on this host are allowed.
   */
  readonly tokenFile: string | undefined;
  readonly pollMs: number;
  readonly retireGraceMs: number;
  readonly parallel: number;
  readonly bytesPerSecond: number | undefined;
  readonly keepFreeBytes: number;
  readonly retention: RetentionPolicy;
}

/** Ranges and defaults of numbers, for flags and file alike. */
export const NUMBER_RANGES = {
  pollMs: { min: 50, max: 3_600_000, default: 2000 },
  retireGraceMs: { min: 0, max: 86_400_000, default: 60_000 },
  /** Concurrent transfers: enough to fill a link that one stream cannot. */
  parallel: { min: 1, max: 64, default: 4 },
  /** By default the active version and its predecessor. */
  keepVersions: { min: 1, max: 1000, default: 2 },
} as const;
export const KEEP_FREE_BYTES_DEFAULT: number = 1 << 30;

const FIELDS = [
  'repository',
  'trusted-keys',
  'data-dir',
  'bundles',
  'servers',
  'supervise',
  'control-token-file',
  ...TLS_FIELDS,
  'listen',
  'token-file',
  'poll-ms',
  'retire-grace-ms',
  'parallel',
  'rate-limit',
  'keep-free',
  'keep-versions',
  'keep-bytes',
];
const SERVER_FIELDS = ['shard', 'shard-num', 'host', 'port', 'admin-port', 'flags'];
const LOOPBACK_ADDRESSES: Readonly<Record<string, string>> = {
  '0.0.0.0': '127.0.0.1',
  '::': '::1',
};
/** Flags that the agent sets itself. */
const RESERVED_FLAG =
  /^--(shard|shard-num|port|host|admin-port|data-dir|control-token-file|tls-(cert|key|ca))(=|$)/;

/** @throws CubeError INVALID_ARGUMENT with the position in the file; NOT_FOUND */
export function readAgentConfig(path: string): AgentConfig {
  return parseAgentConfig(readText(path, CONFIG_BYTES_MAX), path);
}

/** @param path of the file; relative paths start from its folder */
export function parseAgentConfig(text: string, path: string): AgentConfig {
  const root = parseYaml(text, path);
  const fields = root.fields(FIELDS);
  const need = (name: string): YamlNode => fields.get(name) ?? root.fail(`${name} is missing`);
  const file = (node: YamlNode | undefined): string | undefined =>
    node && resolve(dirname(path), node.string());
  const number = (name: string, { min, max, default: other }: NumberRange): number =>
    fields.get(name)?.integer(min, max) ?? other;
  const bytes = (name: string): number | undefined => fields.get(name)?.parse(parseByteCount);
  const supervised = fields.get('supervise')?.boolean()
    ? requireDistinctPorts(need('servers'), serverNodes(need('servers')).map(readServer))
    : [];
  const repository = need('repository').string();
  return {
    repository: isRelativePath(repository) ? resolve(dirname(path), repository) : repository,
    trustedKeys: file(fields.get('trusted-keys')),
    dataFolder: file(need('data-dir')) ?? '',
    bundles: readBundles(need('bundles')),
    servers:
      supervised.length > 0
        ? supervised.map(({ control }) => control)
        : readAddresses(serverNodes(need('servers'))),
    supervised,
    controlTokenFile: file(fields.get('control-token-file')),
    listen: fields.get('listen')?.parse(normalizeEndpoint),
    tokenFile: file(fields.get('token-file')),
    ...readTlsFields(root, fields, file),
    pollMs: number('poll-ms', NUMBER_RANGES.pollMs),
    retireGraceMs: number('retire-grace-ms', NUMBER_RANGES.retireGraceMs),
    parallel: number('parallel', NUMBER_RANGES.parallel),
    bytesPerSecond: bytes('rate-limit'),
    keepFreeBytes: bytes('keep-free') ?? KEEP_FREE_BYTES_DEFAULT,
    retention: {
      maxVersions: number('keep-versions', NUMBER_RANGES.keepVersions),
      maxBytes: bytes('keep-bytes') ?? Number.MAX_SAFE_INTEGER,
    },
  };
}

interface NumberRange {
  readonly min: number;
  readonly max: number;
  readonly default: number;
}

/** Neither an absolute path nor a URL. */
function isRelativePath(repository: string): boolean {
  return !isAbsolute(repository) && !/^[a-z][a-z0-9+.-]*:\/\//i.test(repository);
}

function normalizeEndpoint(text: string): string {
  const { host, port } = parseEndpoint(text);
  return formatEndpoint(host, port);
}

function readBundles(node: YamlNode): BundleConfig[] {
  const items = node.items();
  if (items.length < 1 || items.length > BUNDLES_MAX) node.fail(`expected 1..${BUNDLES_MAX} items`);
  const bundles = items.map((item) => {
    const fields = item.fields(['name', 'channels']);
    const name = fields.get('name') ?? item.fail('name is missing');
    const channels = fields
      .get('channels')
      ?.itemsOrOne()
      .map((channel) => channel.parse((text) => checkName(text, 'channel')));
    if (channels?.length === 0) item.fail('channels: expected at least one');
    return {
      name: name.parse((text) => checkName(text, 'bundle')),
      channels: [...new Set(channels ?? ['stable'])],
    };
  });
  if (new Set(bundles.map(({ name }) => name)).size < bundles.length) {
    node.fail('a bundle is listed twice: list its channels in one item');
  }
  return bundles;
}

function serverNodes(node: YamlNode): YamlNode[] {
  const items = node.items();
  if (items.length >= 1 && items.length <= SERVERS_MAX) return items;
  return node.fail(`expected 1..${SERVERS_MAX} items`);
}

/** The agent knows its servers by address, and waits until it has seen each of them. */
function readAddresses(nodes: readonly YamlNode[]): string[] {
  const addresses = new Set<string>();
  for (const node of nodes) {
    const address = node.parse(normalizeEndpoint);
    if (addresses.has(address)) node.fail(`${address} is listed twice; remove one of them`);
    addresses.add(address);
  }
  return [...addresses];
}

function readServer(node: YamlNode): SupervisedServer {
  const fields = node.fields(SERVER_FIELDS);
  const number = (name: string, min: number, max: number): number =>
    (fields.get(name) ?? node.fail(`${name} is missing`)).integer(min, max);
  const shardNum = number('shard-num', 1, SHARD_NUM_MAX);
  const host = fields.get('host')?.string() ?? '127.0.0.1';
  const port = number('port', 1, 65_535);
  const adminPort = fields.get('admin-port')?.integer(1, 65_535);
  if (adminPort === port) node.fail('port and admin-port are the same');
  return {
    shard: number('shard', 0, shardNum - 1),
    shardNum,
    control: formatEndpoint(LOOPBACK_ADDRESSES[host] ?? host, adminPort ?? port),
    host,
    port,
    adminPort,
    flags: (fields.get('flags')?.items() ?? []).map((flag) => flag.parse(checkFlag)),
  };
}

function checkFlag(text: string): string {
  if (!RESERVED_FLAG.test(text)) return text;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${text} is set by the agent: use the field of the same name`,
  );
}

function requireDistinctPorts(
  node: YamlNode,
  servers: readonly SupervisedServer[],
): SupervisedServer[] {
  const ports = servers.flatMap(({ port, adminPort }) => [port, adminPort ?? port]);
  const used = new Set<number>();
  for (const [i, port] of ports.entries()) {
    const isSameServer = i % 2 === 1 && ports[i - 1] === port;
    if (used.has(port) && !isSameServer) node.fail(`port ${port} is used twice`);
    used.add(port);
  }
  return [...servers];
}
