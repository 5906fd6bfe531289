/** Checks the status of agents and of serving against what the channel points to. */
import { CubeError } from '../../lib/core/errors.ts';
import type { ReportFinding } from '../../lib/core/findings.ts';
import type { JsonReader } from '../../lib/core/json.ts';
import { wallClockMs } from '../../lib/platform/clock.ts';
import { formatBytes } from '../../lib/platform/terminal-output.ts';
import { type Credentials, NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';
import { AGENT_POKE, AGENT_STATUS } from '../fleet/agent-client.ts';
import type { CheckTarget } from './check-target.ts';

const CALL_OPTIONS = { timeoutMs: 5_000 };
const SERVING_STATUS = '/v1/status';
/** No decision depends on clocks, but people compare the times of several hosts. */
const CLOCK_SKEW_MAX_MS = 60_000;

export interface AgentCheckOptions {
  readonly target: CheckTarget;
  /** Addresses of the agents. */
  readonly agents: readonly string[];
  readonly credentials: Credentials;
  /** Rows older than this are stale; undefined: never. */
  readonly staleMs: number | undefined;
  /** Size of the channel's version, all shards. */
  readonly versionBytes: number;
}

export async function checkAgents(
  options: AgentCheckOptions,
  report: ReportFinding,
): Promise<void> {
  await Promise.all(
    options.agents.map(async (address) => {
      const peer = { address, credentials: options.credentials, role: 'cube-agent' };
      const sentMs = wallClockMs();
      try {
        const status = await callJson(peer, AGENT_STATUS, CALL_OPTIONS);
        checkClockSkew(status, address, sentMs, report);
        checkAgent(status, address, options, report);
      } catch (error) {
        reportAgentError(address, error, report);
      }
    }),
  );
}

function reportAgentError(where: string, thrown: unknown, report: ReportFinding): void {
  const { code, message } = CubeError.from(thrown);
  const isDenied = code === 'DENIED';
  report({
    severity: 'error',
    check: isDenied ? 'agent-denied' : 'agent-down',
    where,
    what: message,
    todo: isDenied
      ? 'give the agent a token (token-file in its agent.yaml) and pass it to doctor with ' +
        '--agent-token-file, or give both certificates (tls-cert, tls-key, tls-ca)'
      : 'restart it (systemctl restart cube-agent); until then its servers keep their versions',
  });
}

function checkClockSkew(
  status: JsonReader,
  where: string,
  sentMs: number,
  report: ReportFinding,
): void {
  const theirsMs = Date.parse(status.field('at').string());
  const aheadMs = theirsMs < sentMs ? theirsMs - sentMs : Math.max(0, theirsMs - wallClockMs());
  if (Math.abs(aheadMs) <= CLOCK_SKEW_MAX_MS) return;
  const seconds = Math.round(Math.abs(aheadMs) / 1000);
  report({
    severity: 'note',
    check: 'clock-skew',
    where,
    what:
      `its clock is ${seconds} s ${aheadMs > 0 ? 'ahead' : 'behind'}; nothing fails because of ` +
      'it, but times in logs and histories are wrong',
    todo: 'synchronize the host with a time server (timedatectl set-ntp true)',
  });
}

function checkAgent(
  status: JsonReader,
  where: string,
  options: AgentCheckOptions,
  report: ReportFinding,
): void {
  const { bundle } = options.target;
  checkDisk(status.field('disk'), where, options.versionBytes, report);
  const bundles = status.field('bundles').items();
  const own = bundles.find((item) => item.field('bundle').string() === bundle);
  if (own === undefined) {
    report({
      severity: 'error',
      check: 'agent-without-bundle',
      where,
      what: `does not keep bundle ${bundle}, although the fleet has servers of it on this host`,
      todo: `add ${bundle} to bundles in its agent.yaml and restart it`,
    });
  }
  const sources = own === undefined ? [status] : [status, own];
  for (const problem of sources.flatMap((source) => source.field('problems').items())) {
    const code = problem.field('code').string();
    const message = problem.field('message').string();
    report({
      severity: 'error',
      check: 'agent-problem',
      where,
      what: `${problem.field('what').string()}: ${code} ${message}`,
      todo:
        'solve what the message names; the agent retries by itself, ' +
        `and at once after ${options.credentials.formatPost(where, AGENT_POKE)}`,
    });
  }
  const [first] = own?.field('channels').items() ?? [];
  const freshness = first?.optional('freshnessSeconds', (field) => field.number());
  const { staleMs } = options;
  if (staleMs !== undefined && freshness !== undefined && freshness * 1000 > staleMs) {
    report({
      severity: 'warning',
      check: 'stale',
      where,
      what: `its servers answer with rows that are ${Math.round(freshness)} s old`,
      todo:
        'check with cube-agent history whether versions are published, ' +
        'and with cube-agent status whether they arrive',
    });
  }
}

function checkDisk(
  disk: JsonReader,
  where: string,
  versionBytes: number,
  report: ReportFinding,
): void {
  const keepFree = disk.field('keepFreeBytes').number();
  const free = disk.optional('freeBytes', (field) => field.number());
  if (free === undefined || free - keepFree >= versionBytes) return;
  report({
    severity: 'warning',
    check: 'disk-short',
    where,
    what:
      `has ${formatBytes(Math.max(0, free))} of free disk, of which it keeps ` +
      `${formatBytes(keepFree)} free: another version of ${formatBytes(versionBytes)} may not fit`,
    todo: 'lower keep-versions or keep-bytes in its agent.yaml, or move data-dir to a larger disk',
  });
}

export interface ServingCheckOptions {
  readonly target: CheckTarget;
  /** Addresses of serving processes. */
  readonly servings: readonly string[];
  /** The version that the channel points to. */
  readonly version: string | undefined;
}

export async function checkServings(
  options: ServingCheckOptions,
  report: ReportFinding,
): Promise<void> {
  await Promise.all(
    options.servings.map(async (address) => {
      const peer = { address, credentials: NO_CREDENTIALS, role: 'serving' };
      try {
        const status = await callJson(peer, SERVING_STATUS, CALL_OPTIONS);
        for (const model of status.field('models').items()) {
          checkServing(model, address, options, report);
        }
      } catch (error) {
        report({
          severity: 'error',
          check: 'serving-down',
          where: address,
          what: CubeError.from(error).message,
          todo: 'restart it; its log says why it stopped',
        });
      }
    }),
  );
}

/** Checks one model; models that serve another channel are skipped. */
function checkServing(
  model: JsonReader,
  address: string,
  { target, version }: ServingCheckOptions,
  report: ReportFinding,
): void {
  if (version === undefined || model.field('channel').string() !== target.channel) return;
  const active = model.optional('active', (field) => field.string());
  if (active === version) return;
  const problem = model.optional('problem', (field) => field.string());
  const failed = model
    .field('failed')
    .items()
    .map((item) => `${item.field('version').string()}: ${item.field('message').string()}`);
  const reasons = [problem, ...failed].filter((text) => text !== undefined).join('; ');
  report({
    severity: 'error',
    check: 'serving-behind',
    where: `${address}, model ${model.field('model').string()}`,
    what:
      `answers with version ${active ?? 'none'}, but channel ${target.channel} points to ` +
      `version ${version}${reasons === '' ? '' : ` (${reasons})`}`,
    todo:
      'solve what the message names; serving switches once every shard has a replica with the ' +
      'version and the warm-up passes',
  });
}
