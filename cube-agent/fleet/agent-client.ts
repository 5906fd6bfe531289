/** The calls to the agent of a host (docs/wire/README.md). */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { JsonReader } from '../../lib/core/json.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';

export const AGENT_STATUS = '/agent/v1/status';
export const AGENT_POKE = '/agent/v1/poke';

const TIMEOUT = { timeoutMs: 5_000 };
/** A command waits for it. */
const POKE_TIMEOUT_MS = 1_000;

/** What goes wrong on a host. */
export interface HostProblem {
  readonly host: string;
  readonly what: string;
  readonly code: ErrorCode;
  readonly message: string;
  readonly since: string;
  readonly attempts: number;
}

/** What the agent of a host says of one bundle. */
export interface HostReport {
  readonly host: string;
  readonly answers: boolean;
  readonly freeBytes: number | undefined;
  readonly channels: readonly HostChannel[];
  /** Bytes of the bundle that are on their way, and how many of them are here. */
  readonly fetching: { readonly bytes: number; readonly arrivedBytes: number };
  readonly problems: readonly HostProblem[];
}

interface HostChannel {
  readonly channel: string;
  /** What all servers of the host have of it. */
  readonly applied: string | undefined;
  readonly upToDate: boolean;
  /** The age that its rows have at least. */
  readonly freshnessSeconds: number | undefined;
}

/** An agent that does not answer is a problem itself. */
export async function askAgent(
  address: string,
  bundle: string,
  credentials: Credentials,
): Promise<HostReport> {
  const peer = { address, credentials, name: 'cube-agent' };
  try {
    return readReport(address, bundle, await callJson(peer, AGENT_STATUS, TIMEOUT));
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const problem = { host: address, what: 'ask the agent', code, message, since: '', attempts: 1 };
    const nothing = { freeBytes: undefined, channels: [], fetching: { bytes: 0, arrivedBytes: 0 } };
    return { host: address, answers: false, ...nothing, problems: [problem] };
  }
}

/** Problems of a host, and of one bundle there. */
export async function agentProblems(
  address: string,
  bundle: string,
  credentials: Credentials,
): Promise<HostProblem[]> {
  return [...(await askAgent(address, bundle, credentials)).problems];
}

function readReport(host: string, bundle: string, json: JsonReader): HostReport {
  const bundles = json.field('bundles').items();
  const own = bundles.find((item) => item.field('bundle').string() === bundle);
  const fetching = { bytes: 0, arrivedBytes: 0 };
  for (const transfer of own?.field('fetching').items() ?? []) {
    fetching.bytes += transfer.field('bytes').number();
    fetching.arrivedBytes += transfer.field('arrivedBytes').number();
  }
  return {
    host,
    answers: true,
    freeBytes: json.field('disk').optional('freeBytes', (field) => field.number()),
    channels: own?.field('channels').items().map(readChannel) ?? [],
    fetching,
    problems: readProblems(host, bundle, json),
  };
}

function readChannel(json: JsonReader): HostChannel {
  return {
    channel: json.field('channel').string(),
    applied: json.optional('applied', (field) => field.string()),
    upToDate: json.field('upToDate').boolean(),
    freshnessSeconds: json.optional('freshnessSeconds', (field) => field.number()),
  };
}

function readProblems(address: string, bundle: string, json: JsonReader): HostProblem[] {
  const bundles = json.field('bundles').items();
  const own = bundles.filter((item) => item.field('bundle').string() === bundle);
  return [json, ...own]
    .flatMap((item) => item.field('problems').items())
    .map((item) => readProblem(address, item));
}

function readProblem(host: string, json: JsonReader): HostProblem {
  return {
    host,
    what: json.field('what').string(),
    code: json.field('code').string() as ErrorCode,
    message: json.field('message').string(),
    since: json.field('since').string(),
    attempts: json.field('attempts').integer(1),
  };
}

/** Tells agents to look now. Who does not answer looks by itself a little later. */
export async function pokeAgents(
  addresses: readonly string[],
  credentials: Credentials,
): Promise<void> {
  const options = { body: {}, timeoutMs: POKE_TIMEOUT_MS };
  await Promise.allSettled(
    addresses.map((address) =>
      callJson({ address, credentials, name: 'cube-agent' }, AGENT_POKE, options),
    ),
  );
}
