/**
 * `transfer.conf`, the configuration of Cube's cube-transfer: sections of `key: value` lines,
 * comments with `#` or `//`. Keys that cube-transfer requires are required here, even if they are
 * not used, so that a file works with both. Unknown lines are reported with their number.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Fleet, Replica } from '../../lib/core/fleet.ts';
import { SHARD_NUM_MAX } from '../../lib/core/layer-format.ts';
import { NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
import { readText } from '../../lib/platform/files.ts';
import { formatEndpoint, parseEndpoint } from '../../lib/rpc/endpoint.ts';

const CONF_BYTES_MAX = 16 << 20;
const REPLICAS_MAX = 1000;
/** More instances are taken for a mistake in the counts. */
const INSTANCES_MAX = 100_000;

const KEYS = [
  'dict_name',
  'mode',
  'download_mode',
  'wget_port',
  'buildtool_local',
  'donefile_address',
  'output_address',
  'tmp_address',
  'shard_num',
  'copy_num',
  'deploy_path',
  'transfer_address',
] as const;
type Key = (typeof KEYS)[number];

const INSTANCE = /^(agent|cube)(\d{1,5})_(\d{1,4})$/;

/** A cube-server of Cube and its agent. */
export interface CubeInstance {
  readonly shard: number;
  readonly replica: number;
  /** host:port of cube-server, for lookups and commands. */
  readonly server: string;
  /**
   * Folder on the server's host in which cube-server runs; its dictionaries are in `data` there.
   */
  readonly deployPath: string;
  /** host:port of cube-agent. */
  readonly agent: string;
}

export interface TransferConf {
  readonly dictName: string;
  readonly mode: 'base_only' | 'base_delta';
  /** Folder or http(s)://… with base.txt and patch.txt. */
  readonly donefileAddress: string;
  readonly shardNum: number;
  readonly copyNum: number;
  readonly instances: readonly CubeInstance[];
  /** Lines without a meaning, each with its number. */
  readonly warnings: readonly string[];
}

interface ConfLine {
  readonly number: number;
  readonly value: string;
}

/** @throws CubeError INVALID_ARGUMENT naming the line or the missing key; NOT_FOUND */
export function readTransferConf(path: string): TransferConf {
  return parseTransferConf(readText(path, CONF_BYTES_MAX), path);
}

/** @param source what to call the file in errors */
export function parseTransferConf(text: string, source: string): TransferConf {
  const { values, hosts, warnings } = readLines(text, source);
  const fail = (problem: string, line?: ConfLine): never => {
    const place = line === undefined ? source : `${source}: line ${line.number}`;
    throw new CubeError('INVALID_ARGUMENT', `${place}: ${problem}`);
  };
  const absent = KEYS.filter((key) => !values.has(key));
  if (absent.length > 0) fail(`section [default] lacks ${absent.join(', ')}`);
  const getLine = (key: Key): ConfLine => values.get(key) ?? fail(`section [default] lacks ${key}`);
  const count = (key: Key, max: number): number => {
    const { value } = getLine(key);
    if (/^[1-9]\d{0,6}$/.test(value) && Number(value) <= max) return Number(value);
    return fail(
      `${key}: expected a number from 1 to ${max}, got ${quoteShort(value)}`,
      getLine(key),
    );
  };
  const one = <T extends string>(key: Key, choices: readonly T[]): T =>
    choices.find((choice) => choice === getLine(key).value) ??
    fail(
      `${key}: expected ${choices.join(' or ')}, got ${quoteShort(getLine(key).value)}`,
      getLine(key),
    );
  const name = getLine('dict_name');
  if (!NAME_PATTERN.test(name.value)) fail(`dict_name: expected ${NAME_RULE}`, name);
  one('download_mode', ['http', 'ftp']);
  count('wget_port', 65_535);
  const shardNum = count('shard_num', SHARD_NUM_MAX);
  const copyNum = count('copy_num', REPLICAS_MAX);
  if (shardNum * copyNum > INSTANCES_MAX) {
    fail(`${shardNum} shards × ${copyNum} copies are more than ${INSTANCES_MAX} servers`);
  }
  return {
    dictName: name.value,
    mode: one('mode', ['base_only', 'base_delta']),
    donefileAddress: getLine('donefile_address').value,
    shardNum,
    copyNum,
    instances: buildInstances(hosts, { shardNum, copyNum }, fail),
    warnings: [...warnings, ...findExcessInstances(hosts, { shardNum, copyNum })],
  };
}

function quoteShort(text: string): string {
  return JSON.stringify(text.length > 60 ? `${text.slice(0, 57)}...` : text);
}

interface ConfLines {
  readonly values: Map<string, ConfLine>;
  /** Of [cube_agent]. */
  readonly hosts: Map<string, ConfLine>;
  readonly warnings: string[];
}

function readLines(text: string, source: string): ConfLines {
  const lines: ConfLines = { values: new Map(), hosts: new Map(), warnings: [] };
  let section = '';
  for (const [i, raw] of text.split('\n').entries()) {
    const number = i + 1;
    const line = raw.replace(/(^|\s)(#|\/\/).*$/s, '').trim();
    if (line === '') continue;
    const heading = /^\[([^\]]*)\]$/.exec(line)?.[1];
    if (heading !== undefined) {
      section = heading.trim();
      if (section !== 'default' && section !== 'cube_agent') {
        lines.warnings.push(`line ${number}: no section is named ${quoteShort(section)}`);
      }
      continue;
    }
    const [, key = '', value = ''] = /^([^:=\s]+)\s*[:=]\s*(.*)$/.exec(line) ?? [];
    if (key === '' || value === '') {
      const what = `expected "key: value", got ${quoteShort(line)}`;
      throw new CubeError('INVALID_ARGUMENT', `${source}: line ${number}: ${what}`);
    }
    addLine(lines, section, key, { number, value });
  }
  return lines;
}

function addLine(
  { values, hosts, warnings }: ConfLines,
  section: string,
  key: string,
  line: ConfLine,
): void {
  const isHost = section === 'cube_agent' && INSTANCE.test(key);
  const isValue = section === 'default' && (KEYS as readonly string[]).includes(key);
  const known = isHost ? hosts : isValue ? values : undefined;
  if (known === undefined) {
    const where = section === '' ? 'before any section' : `in [${section}]`;
    warnings.push(`line ${line.number}: ${quoteShort(key)} ${where} has no meaning`);
    return;
  }
  const before = known.get(key);
  if (before !== undefined) {
    warnings.push(
      `line ${line.number}: ${key} is also on line ${before.number}; this line is used`,
    );
  }
  known.set(key, line);
}

interface InstanceCounts {
  readonly shardNum: number;
  readonly copyNum: number;
}

function buildInstances(
  hosts: ReadonlyMap<string, ConfLine>,
  { shardNum, copyNum }: InstanceCounts,
  fail: (what: string, line?: ConfLine) => never,
): CubeInstance[] {
  const need = (key: string): ConfLine =>
    hosts.get(key) ??
    fail(`section [cube_agent] lacks ${key}; shard_num × copy_num is ${shardNum} × ${copyNum}`);
  const instances: CubeInstance[] = [];
  for (let shard = 0; shard < shardNum; shard++) {
    for (let replica = 0; replica < copyNum; replica++) {
      const agent = need(`agent${shard}_${replica}`);
      const cube = need(`cube${shard}_${replica}`);
      const [, address, deployPath] = /^(\[[^\]]+\]:\d+|[^:]+:\d+):(.+)$/.exec(cube.value) ?? [];
      if (address === undefined || deployPath === undefined) {
        fail(`expected ip:port:deploy_path, got ${quoteShort(cube.value)}`, cube);
      }
      instances.push({
        shard,
        replica,
        deployPath,
        server: endpoint(address, (why) => fail(why, cube)),
        agent: endpoint(agent.value, (why) => fail(why, agent)),
      });
    }
  }
  const seen = new Set<string>();
  for (const { server } of instances) {
    if (seen.has(server)) fail(`two instances are the server ${server}`);
    seen.add(server);
  }
  return instances;
}

function endpoint(text: string, fail: (why: string) => never): string {
  try {
    const { host, port } = parseEndpoint(text);
    return formatEndpoint(host, port);
  } catch (error) {
    return fail(CubeError.from(error).message);
  }
}

/** Instances beyond shard_num or copy_num. */
function findExcessInstances(
  hosts: ReadonlyMap<string, ConfLine>,
  { shardNum, copyNum }: InstanceCounts,
): string[] {
  return [...hosts].flatMap(([key, { number }]) => {
    const [, , shard, replica] = INSTANCE.exec(key) ?? [];
    if (Number(shard) < shardNum && Number(replica) < copyNum) return [];
    return `line ${number}: ${key} is beyond shard_num ${shardNum} and copy_num ${copyNum}`;
  });
}

/** The fleet of its servers: each dictionary is a bundle of that name. */
export function toFleet({ dictName, shardNum, instances }: TransferConf): Fleet {
  const shards = Array.from({ length: shardNum }, (_, shard) =>
    instances
      .filter((instance) => instance.shard === shard)
      .map(
        ({ server, agent }): Replica => ({
          data: server,
          control: server,
          group: 'default',
          agent,
        }),
      ),
  );
  return { bundles: new Map([[dictName, [{ shardNum, shards }]]]) };
}

/** The cube.conf for its clients, both Cube's and ours (lib/client/cube-conf.ts). */
export function toCubeConf({ dictName, shardNum, copyNum, instances }: TransferConf): string {
  const nodes = Array.from({ length: shardNum }, (_, shard) => {
    const own = instances.filter((instance) => instance.shard === shard);
    return { ipport_list: `list://${own.map(({ server }) => server).join(',')}` };
  });
  const dict = {
    dict_name: dictName,
    shard: shardNum,
    dup: copyNum,
    timeout: 200,
    retry: 3,
    backup_request: 100,
    type: 'ipport_list',
    load_balancer: 'rr',
    nodes,
  };
  return `${JSON.stringify([dict], null, 2)}\n`;
}
