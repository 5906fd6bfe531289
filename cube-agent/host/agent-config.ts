/**
 * What an agent is told: `agent.yaml`, or the flags of `cube-agent run` (JSON Schema in docs/schemas/agent.schema.json).
 * The file's fields have the names of the flags; paths are relative to the file.
 */
import { dirname, isAbsolute, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { SHARD_NUM_MAX } from '../../lib/core/layer-format.ts';
import { checkName } from '../../lib/core/names.ts';
import { byteCount } from '../../lib/platform/cli.ts';
import { readText } from '../../lib/platform/files.ts';
import { parseYaml, type YamlNode } from '../../lib/platform/yaml-node.ts';
import { formatEndpoint, parseEndpoint } from '../../lib/rpc/endpoint.ts';
import { readTlsFields, TLS_FIELDS, type TlsFields } from '../fleet/tls-fields.ts';
import type { KeepPolicy } from './plan.ts';

const CONFIG_BYTES_MAX = 1 << 20;
const BUNDLES_MAX = 100;
const SERVERS_MAX = 1000;

/** What of a bundle is followed: the servers' active version follows the first channel. */
export interface BundleConfig {
  readonly name: string;
  readonly channels: readonly string[];
}

/** A cube-server that the agent itself starts. */
export interface SupervisedServer {
  readonly shard: number;
  readonly shardNum: number;
  /** Where its control calls are answered. */
  readonly control: string;
  readonly host: string;
  readonly port: number;
  readonly adminPort: number | undefined;
  /** Further flags of cube-server, as they are. */
  readonly flags: readonly string[];
}

/** With a certificate: what servers are shown, what callers of the agent are, and what the servers have that the agent starts. */
export interface AgentConfig extends TlsFields {
  readonly repository: string;
  /** A file, or a folder of files, with the public keys of publishers: what they did not sign is not taken. */
  readonly trustedKeys: string | undefined;
  readonly dataFolder: string;
  readonly bundles: readonly BundleConfig[];
  /** Control addresses, host:port. */
  readonly servers: readonly string[];
  /** Those of the servers that the agent starts itself. */
  readonly supervised: readonly SupervisedServer[];
  /** The servers' token. */
  readonly controlTokenFile: string | undefined;
  /** Where the agent itself answers; undefined: nowhere. */
  readonly listen: string | undefined;
  /** What callers of the agent need; without it, and without certificates, only this host is answered. */
  readonly tokenFile: string | undefined;
  readonly pollMs: number;
  readonly retireGraceMs: number;
  readonly parallel: number;
  readonly bytesPerSecond: number | undefined;
  readonly keepFreeBytes: number;
  readonly keep: KeepPolicy;
}

/** Bounds and defaults of numbers, for flags and file alike. */
export const BOUNDS = {
  pollMs: { min: 50, max: 3_600_000, default: 2000 },
  retireGraceMs: { min: 0, max: 86_400_000, default: 60_000 },
  /** Transfers at once: enough to fill a link over which one stream does not. */
  parallel: { min: 1, max: 64, default: 4 },
  /** The pointer and the version before it. */
  keepVersions: { min: 1, max: 1000, default: 2 },
} as const;
export const KEEP_FREE_BYTES_DEFAULT: number = 1 << 30;

const FIELDS = [
  ...[
    'repository',
    'trusted-keys',
    'data-dir',
    'bundles',
    'servers',
    'supervise',
    'control-token-file',
  ],
  ...TLS_FIELDS,
  ...['listen', 'token-file', 'poll-ms', 'retire-grace-ms', 'parallel', 'rate-limit'],
  ...['keep-free', 'keep-versions', 'keep-bytes'],
];
const SERVER_FIELDS = ['shard', 'shard-num', 'host', 'port', 'admin-port', 'flags'];
const ANY_ADDRESS: Readonly<Record<string, string>> = { '0.0.0.0': '127.0.0.1', '::': '::1' };
/** Of a flag that the agent gives itself. */
const OWN_FLAG =
  /^--(shard|shard-num|port|host|admin-port|data-dir|control-token-file|tls-(cert|key|ca))(=|$)/;

/** @throws CubeError INVALID_ARGUMENT with the place in the file; NOT_FOUND */
export function readAgentConfig(path: string): AgentConfig {
  return parseAgentConfig(readText(path, CONFIG_BYTES_MAX), path);
}

/** @param path of the file, which relative paths start from */
export function parseAgentConfig(text: string, path: string): AgentConfig {
  const root = parseYaml(text, path);
  const fields = root.fields(FIELDS);
  const need = (name: string): YamlNode => fields.get(name) ?? root.fail(`${name} is missing`);
  const file = (node: YamlNode | undefined): string | undefined =>
    node && resolve(dirname(path), node.string());
  const number = (name: string, { min, max, default: other }: Bounds): number =>
    fields.get(name)?.integer(min, max) ?? other;
  const bytes = (name: string): number | undefined => fields.get(name)?.parsed(byteCount);
  const supervised = fields.get('supervise')?.boolean()
    ? distinct(need('servers'), serverNodes(need('servers')).map(readServer))
    : [];
  const repository = need('repository').string();
  return {
    repository: isLocal(repository) ? resolve(dirname(path), repository) : repository,
    trustedKeys: file(fields.get('trusted-keys')),
    dataFolder: file(need('data-dir')) ?? '',
    bundles: readBundles(need('bundles')),
    servers:
      supervised.length > 0
        ? supervised.map(({ control }) => control)
        : serverNodes(need('servers')).map((node) => node.parsed(checkedEndpoint)),
    supervised,
    controlTokenFile: file(fields.get('control-token-file')),
    listen: fields.get('listen')?.parsed(checkedEndpoint),
    tokenFile: file(fields.get('token-file')),
    ...readTlsFields(root, fields, file),
    pollMs: number('poll-ms', BOUNDS.pollMs),
    retireGraceMs: number('retire-grace-ms', BOUNDS.retireGraceMs),
    parallel: number('parallel', BOUNDS.parallel),
    bytesPerSecond: bytes('rate-limit'),
    keepFreeBytes: bytes('keep-free') ?? KEEP_FREE_BYTES_DEFAULT,
    keep: {
      versions: number('keep-versions', BOUNDS.keepVersions),
      bytes: bytes('keep-bytes') ?? Number.MAX_SAFE_INTEGER,
    },
  };
}

interface Bounds {
  readonly min: number;
  readonly max: number;
  readonly default: number;
}

/** A folder, not a URL. */
function isLocal(repository: string): boolean {
  return !isAbsolute(repository) && !/^[a-z][a-z0-9+.-]*:\/\//i.test(repository);
}

function checkedEndpoint(text: string): string {
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
      .map((channel) => channel.parsed((text) => checkName(text, 'channel')));
    if (channels?.length === 0) item.fail('channels: expected at least one');
    return {
      name: name.parsed((text) => checkName(text, 'bundle')),
      channels: [...new Set(channels ?? ['stable'])],
    };
  });
  if (new Set(bundles.map(({ name }) => name)).size < bundles.length) {
    node.fail('a bundle comes twice: give its channels in one item');
  }
  return bundles;
}

function serverNodes(node: YamlNode): YamlNode[] {
  const items = node.items();
  if (items.length >= 1 && items.length <= SERVERS_MAX) return items;
  return node.fail(`expected 1..${SERVERS_MAX} items`);
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
    control: formatEndpoint(ANY_ADDRESS[host] ?? host, adminPort ?? port),
    host,
    port,
    adminPort,
    flags: (fields.get('flags')?.items() ?? []).map((flag) => flag.parsed(checkedFlag)),
  };
}

function checkedFlag(text: string): string {
  if (!OWN_FLAG.test(text)) return text;
  throw new CubeError('INVALID_ARGUMENT', `${text} is the agent's own: give it as a field`);
}

function distinct(node: YamlNode, servers: readonly SupervisedServer[]): SupervisedServer[] {
  const ports = servers.flatMap(({ port, adminPort }) => [port, adminPort ?? port]);
  const used = new Set<number>();
  for (const [i, port] of ports.entries()) {
    const isOwnAgain = i % 2 === 1 && ports[i - 1] === port;
    if (used.has(port) && !isOwnAgain) node.fail(`port ${port} has two uses`);
    used.add(port);
  }
  return [...servers];
}
