/** Client of a host's agent (docs/wire/README.md). */
import { CubeError } from '../../lib/core/errors.ts';
import type { JsonReader } from '../../lib/core/json.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';
import { describeOperation, type Operation, type Problem, parseProblem } from './problem.ts';

export const AGENT_STATUS = '/agent/v1/status';
export const AGENT_POKE = '/agent/v1/poke';

const TIMEOUT = { timeoutMs: 5_000 };
/** Short, since commands wait for it. */
const POKE_TIMEOUT_MS = 1_000;

export interface HostProblem extends Problem {
  /** Address of the agent, or the data folder that the problem was read from. */
  readonly host: string;
}

/** The status of one bundle on a host, as its agent reports it. */
export interface HostReport {
  readonly host: string;
  readonly answers: boolean;
  readonly freeBytes: number | undefined;
  readonly channels: readonly HostChannel[];
  /** Total bytes of the layers that are being fetched, and the bytes that have arrived. */
  readonly fetching: { readonly bytes: number; readonly arrivedBytes: number };
  readonly problems: readonly HostProblem[];
}

interface HostChannel {
  readonly channel: string;
  /** The version that all servers of the host have. */
  readonly applied: string | undefined;
  readonly upToDate: boolean;
  /** Minimum age of the applied version's rows. */
  readonly freshnessSeconds: number | undefined;
}

/** Never throws: an agent that does not answer is reported as a problem. */
export async function fetchHostReport(
  address: string,
  bundle: string,
  credentials: Credentials,
): Promise<HostReport> {
  const peer = { address, credentials, role: 'cube-agent' };
  try {
    return readReport(address, bundle, await callJson(peer, AGENT_STATUS, TIMEOUT));
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const operation: Operation = { action: 'contact-agent' };
    const what = describeOperation(operation);
    const attempt = { since: '', attempts: 1 };
    return {
      host: address,
      answers: false,
      freeBytes: undefined,
      channels: [],
      fetching: { bytes: 0, arrivedBytes: 0 },
      problems: [{ host: address, ...operation, what, code, message, ...attempt }],
    };
  }
}

/** The problems of a host as a whole and those of one bundle on it. */
export async function fetchHostProblems(
  address: string,
  bundle: string,
  credentials: Credentials,
): Promise<HostProblem[]> {
  return [...(await fetchHostReport(address, bundle, credentials)).problems];
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
    .map((item) => ({ host: address, ...parseProblem(item) }));
}

/** Makes agents poll now. An agent that does not answer polls by itself a little later. */
export async function pokeAgents(
  addresses: readonly string[],
  credentials: Credentials,
): Promise<void> {
  const options = { body: {}, timeoutMs: POKE_TIMEOUT_MS };
  await Promise.allSettled(
    addresses.map((address) =>
      callJson({ address, credentials, role: 'cube-agent' }, AGENT_POKE, options),
    ),
  );
}
