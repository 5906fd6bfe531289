/**
 * The HTTP API of Cube's original cube-agent, for the tools that call it: its paths, its JSON and
 * its HTTP 200 for every reply. Unlike the original, a reply says "success" only when it is true.
 *
 * This agent fetches, loads and activates what a channel points to by itself, so a command only
 * asks whether that has happened. "Not yet" makes cube-transfer retry. Nothing in a command is
 * executed or joined to a path.
 */

import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { checkName } from '../../lib/core/names.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';

export const AGENT_CALL_PATH = '/agent/:api';
/** Response header with the error code; the HTTP status is always 200. */
export const CODE_HEADER = 'x-hypercube-code';

export interface AgentReply {
  /** "0": true; "255": not true, or failed; "2": no such call. */
  readonly success: '0' | '255' | '2';
  readonly message: string;
  readonly data?: unknown;
}

export interface AgentCallResult {
  readonly reply: AgentReply;
  /** Undefined for success. */
  readonly code: ErrorCode | undefined;
}

/** What the API needs to know of a bundle that the agent keeps. */
interface BundleStatus {
  readonly bundle: string;
  readonly channels: readonly { readonly channel: string; readonly pointer: string | undefined }[];
  readonly quarantined: readonly string[];
  /** Versions that a channel needs. */
  readonly wanted: readonly string[];
  readonly onDisk: readonly string[];
  readonly problems: readonly {
    readonly what: string;
    readonly code: string;
    readonly message: string;
  }[];
}

interface ServerBundle {
  readonly bundle: string;
  readonly active: string | undefined;
  readonly held: readonly string[];
}

interface ServerStatus {
  readonly address: string;
  readonly answers: boolean;
  readonly shardIndex: number | undefined;
  readonly bundles: readonly ServerBundle[];
}

/** The agent of this host, as far as the API needs it. */
export interface LocalAgent {
  readonly healthy: boolean;
  status(): {
    readonly repository: string;
    readonly bundles: readonly BundleStatus[];
    readonly servers: readonly ServerStatus[];
  };
  /** Polls the repository now and retries at once what waits for a retry. */
  poke(): void;
}

/** @param call.body as received. Never throws: every failure is a reply */
export function handleAgentCall(
  call: { method: string; api: string; body: string },
  agent: LocalAgent,
): AgentCallResult {
  try {
    if (call.method === 'GET' && call.api === 'status') {
      return { reply: handleStatus(agent), code: undefined };
    }
    if (call.method === 'POST' && call.api === 'cmd') {
      const reply = handleCommand(JsonReader.parse(call.body, 'command'), agent);
      return { reply, code: undefined };
    }
    const message = 'no such call; supported are GET /agent/status and POST /agent/cmd';
    return { reply: { success: '2', message }, code: 'UNSUPPORTED' };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    return { reply: { success: '255', message: `${code}: ${message}` }, code };
  }
}

function handleStatus(agent: LocalAgent): AgentReply {
  if (!agent.healthy) {
    throw new CubeError('UNAVAILABLE', 'the agent has stopped polling; restart it');
  }
  return { success: '0', message: 'query ok', data: { status: 'RUNNING', version: '3.0.0.1' } };
}

interface AgentCommand {
  readonly bundle: BundleStatus;
  /** The servers of the command's shard, at least one. */
  readonly servers: readonly ServerStatus[];
  readonly version: string;
}

function handleCommand(json: JsonReader, agent: LocalAgent): AgentReply {
  const name = json.field('command').string();
  const confirm = COMMANDS.get(name);
  if (confirm === undefined) throw new CubeError('UNSUPPORTED', explainUnsupported(name));
  const command = readCommand(json, agent);
  return { success: '0', message: confirm(command, agent) };
}

/**
 * Each returns the message of success. @throws CubeError NOT_READY or the reason why it is not so
 */
const COMMANDS: ReadonlyMap<string, (command: AgentCommand, agent: LocalAgent) => string> = new Map(
  [
    ['download', confirmOnDisk],
    ['reload', confirmLoaded],
    ['enable', confirmActive],
  ],
);

function explainUnsupported(command: string): string {
  switch (command) {
    case 'clear':
    case 'pop':
      return (
        `${command} is not needed: the agent removes versions by itself ` +
        'when no channel needs them and the keep policy does not keep them'
      );
    case 'rollback':
      return 'rollback is not supported here; run cube-agent rollback, which moves the whole fleet';
    default: {
      const name = quoteInput(command);
      return `there is no command ${name}; supported are download, reload and enable`;
    }
  }
}

/** @throws CubeError INVALID_ARGUMENT, NOT_FOUND */
function readCommand(json: JsonReader, agent: LocalAgent): AgentCommand {
  const status = agent.status();
  const dict = json.field('dict_name').string();
  const bundle = status.bundles.find((candidate) => candidate.bundle === dict);
  if (bundle === undefined) {
    const known = status.bundles.map((candidate) => candidate.bundle).join(', ');
    const name = quoteInput(dict);
    throw new CubeError('NOT_FOUND', `this agent has no bundle ${name} (it has: ${known})`);
  }
  const shard = json.optional('shard_seq', (field) => field.integer(0, 65_535)) ?? 0;
  const servers = status.servers.filter(({ shardIndex }) => shardIndex === shard);
  if (servers.length === 0) {
    const known = status.servers.map(
      ({ address, shardIndex }) => `${address}: shard ${shardIndex ?? 'unknown'}`,
    );
    throw new CubeError(
      'NOT_FOUND',
      `this host has no server of shard ${shard} (${known.join(', ')})`,
    );
  }
  const version = checkName(json.field('version').string(), 'version');
  const depend = checkName(json.field('depend').string(), 'depend');
  const name = version === depend ? version : `${depend}_${version}`;
  return { bundle, servers, version: checkName(name, 'version and depend') };
}

function confirmOnDisk({ bundle, version }: AgentCommand, agent: LocalAgent): string {
  if (bundle.onDisk.includes(version)) {
    const { repository } = agent.status();
    const note = "the command's source is ignored";
    return `version ${version} is on disk, fetched from ${repository} (${note})`;
  }
  if (bundle.quarantined.includes(version)) {
    throw new CubeError(
      'CONFLICT',
      `version ${version} is quarantined and never loaded again; ` +
        'publish its content as a new version',
    );
  }
  agent.poke();
  if (!bundle.wanted.includes(version)) {
    const channels = bundle.channels.map(({ channel }) => channel).join(', ');
    throw new CubeError(
      'NOT_READY',
      `no channel (${channels}) points to version ${version}; ` +
        'publish it and activate it, then the agent fetches it',
    );
  }
  throw notReadyError(bundle, `version ${version} is not completely on disk yet`);
}

function confirmLoaded({ bundle, servers, version }: AgentCommand, agent: LocalAgent): string {
  const pending = servers.filter(
    (server) => !findBundleStatus(server, bundle)?.held.includes(version),
  );
  if (pending.length === 0) return `version ${version} is loaded in ${joinAddresses(servers)}`;
  agent.poke();
  throw notReadyError(bundle, `version ${version} is not loaded in ${joinAddresses(pending)} yet`);
}

function confirmActive({ bundle, servers, version }: AgentCommand, agent: LocalAgent): string {
  const pending = servers.filter((server) => findBundleStatus(server, bundle)?.active !== version);
  if (pending.length === 0) return `version ${version} is active in ${joinAddresses(servers)}`;
  agent.poke();
  const [first] = bundle.channels;
  throw notReadyError(
    bundle,
    `version ${version} is not active in ${joinAddresses(pending)}; servers activate the version ` +
      `of channel ${first?.channel}, which is ${first?.pointer ?? 'none'}`,
  );
}

function findBundleStatus(
  server: ServerStatus,
  { bundle }: BundleStatus,
): ServerBundle | undefined {
  if (!server.answers) return undefined;
  return server.bundles.find((candidate) => candidate.bundle === bundle);
}

function joinAddresses(servers: readonly ServerStatus[]): string {
  return servers.map(({ address }) => address).join(', ');
}

/** Adds the bundle's first problem, which is the likely reason. */
function notReadyError({ problems }: BundleStatus, text: string): CubeError {
  const [problem] = problems;
  const reason = problem && `: ${problem.what}: ${problem.code} ${problem.message}`;
  return new CubeError('NOT_READY', `${text}${reason ?? '; retry'}`);
}
