/**
 * The commands of Cube's cube-agent, for the tools that send them: its paths, its JSON, its HTTP 200 for everything; but its
 * success means that it is so. Agents of ours fetch, load and activate what a channel wants by themselves, so a command asks
 * whether that has been done, and "not yet" is an answer that cube-transfer tries again after. Nothing in a command is ever
 * run or joined to a path.
 */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { checkName } from '../../lib/core/names.ts';
import type { HostStatus } from '../host/host-status.ts';

export const CUBE_AGENT_PATH = '/agent/:api';
/** Of what failed; the HTTP status says nothing. */
export const CODE_HEADER = 'x-hypercube-code';

export interface CubeReply {
  /** "0" it is so, "255" it is not, "2" there is no such call. */
  readonly success: '0' | '255' | '2';
  readonly message: string;
  readonly data?: unknown;
}

export interface CubeAnswer {
  readonly reply: CubeReply;
  readonly code: ErrorCode | undefined;
}

/** What an answer is made from. */
export interface CommandHost {
  readonly healthy: boolean;
  status(): HostStatus;
  /** Looks now, tries at once what waits. */
  poke(): void;
}

type BundleStatus = HostStatus['bundles'][number];
type ServerStatus = HostStatus['servers'][number];

/** @param body as it came. Never throws */
export function answerCubeCall(
  call: { method: string; api: string; body: string },
  host: CommandHost,
): CubeAnswer {
  try {
    if (call.method === 'GET' && call.api === 'status')
      return { reply: statusReply(host), code: undefined };
    if (call.method === 'POST' && call.api === 'cmd') {
      const reply = commandReply(JsonReader.parse(call.body, 'command'), host);
      return { reply, code: undefined };
    }
    const message = 'no such call: GET /agent/status and POST /agent/cmd are answered';
    return { reply: { success: '2', message }, code: 'UNSUPPORTED' };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    return { reply: { success: '255', message: `${code}: ${message}` }, code };
  }
}

function statusReply(host: CommandHost): CubeReply {
  if (!host.healthy) throw new CubeError('UNAVAILABLE', 'the agent does not look any more');
  return { success: '0', message: 'query ok', data: { status: 'RUNNING', version: '3.0.0.1' } };
}

interface Command {
  readonly bundle: BundleStatus;
  /** The servers of the command's shard, at least one. */
  readonly servers: readonly ServerStatus[];
  readonly version: string;
}

function commandReply(json: JsonReader, host: CommandHost): CubeReply {
  const name = json.field('command').string();
  const act = Object.hasOwn(COMMANDS, name) ? COMMANDS[name as keyof typeof COMMANDS] : undefined;
  if (act === undefined) throw new CubeError('UNSUPPORTED', why(name));
  const command = readCommand(json, host.status());
  return { success: '0', message: act(command, host) };
}

const COMMANDS: Readonly<Record<string, (command: Command, host: CommandHost) => string>> = {
  download: isOnDisk,
  reload: isLoaded,
  enable: isActive,
};

function why(command: string): string {
  switch (command) {
    case 'clear':
    case 'pop':
      return `${command}: the agent removes by itself what no channel wants and its keep policy does not keep`;
    case 'rollback':
      return 'rollback: run cube-agent rollback, it moves the whole fleet';
    default:
      return `no command ${JSON.stringify(command.slice(0, 60))}: download, reload and enable are answered`;
  }
}

/** @throws CubeError INVALID_ARGUMENT, NOT_FOUND */
function readCommand(json: JsonReader, status: HostStatus): Command {
  const dict = json.field('dict_name').string();
  const bundle = status.bundles.find((candidate) => candidate.bundle === dict);
  if (bundle === undefined) {
    const known = status.bundles.map((candidate) => candidate.bundle).join(', ');
    const text = `this agent keeps no ${JSON.stringify(dict.slice(0, 130))} (it keeps: ${known})`;
    throw new CubeError('NOT_FOUND', text);
  }
  const shard = json.optional('shard_seq', (field) => field.integer(0, 65_535)) ?? 0;
  const servers = status.servers.filter(({ shardIndex }) => shardIndex === shard);
  if (servers.length === 0) {
    const known = status.servers.map(
      ({ address, shardIndex }) => `${address}: ${shardIndex ?? 'unknown'}`,
    );
    const text = `no server of shard ${shard} answers here (${known.join(', ')})`;
    throw new CubeError('NOT_FOUND', text);
  }
  const [version, depend] = ['version', 'depend'].map((field) =>
    checkName(json.field(field).string(), field),
  );
  const name = version === depend ? version : `${depend}_${version}`;
  return { bundle, servers, version: checkName(name ?? '', 'version and depend') };
}

function isOnDisk({ bundle, version }: Command, host: CommandHost): string {
  if (bundle.onDisk.includes(version)) {
    return `version ${version} is on disk, from ${host.status().repository} (the command's source is not used)`;
  }
  if (bundle.quarantined.includes(version)) {
    throw new CubeError('CONFLICT', `version ${version} is quarantined: it is never taken again`);
  }
  host.poke();
  if (!bundle.wanted.includes(version)) {
    const channels = bundle.channels.map(({ channel }) => channel).join(', ');
    throw new CubeError(
      'NOT_READY',
      `no channel wants version ${version} (${channels}): publish it and activate it, then the agent fetches it`,
    );
  }
  throw notYet(bundle, `version ${version} is wanted and not whole on disk yet`);
}

function isLoaded({ bundle, servers, version }: Command, host: CommandHost): string {
  const without = servers.filter((server) => !of(server, bundle)?.held.includes(version));
  if (without.length === 0) return `version ${version} is loaded in ${addresses(servers)}`;
  host.poke();
  throw notYet(bundle, `version ${version} is not loaded in ${addresses(without)} yet`);
}

function isActive({ bundle, servers, version }: Command, host: CommandHost): string {
  const others = servers.filter((server) => of(server, bundle)?.active !== version);
  if (others.length === 0) return `version ${version} is active in ${addresses(servers)}`;
  host.poke();
  const [first] = bundle.channels;
  throw notYet(
    bundle,
    `version ${version} is not active in ${addresses(others)}; what channel ${first?.channel} points to ` +
      `becomes active, and that is ${first?.pointer ?? 'nothing'}`,
  );
}

function of(
  server: ServerStatus,
  { bundle }: BundleStatus,
): ServerStatus['bundles'][number] | undefined {
  if (!server.answers) return undefined;
  return server.bundles.find((candidate) => candidate.bundle === bundle);
}

function addresses(servers: readonly ServerStatus[]): string {
  return servers.map(({ address }) => address).join(', ');
}

/** With what keeps it, when something does. */
function notYet({ problems }: BundleStatus, text: string): CubeError {
  const [problem] = problems;
  const because = problem && `: ${problem.what}: ${problem.code} ${problem.message}`;
  return new CubeError('NOT_READY', `${text}${because ?? '; ask again'}`);
}
