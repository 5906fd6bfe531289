/** What agents and serving say of themselves, held against what the channel wants. */
import { CubeError } from '../../lib/core/errors.ts';
import type { JsonReader } from '../../lib/core/json.ts';
import { wallClockMs } from '../../lib/platform/clock.ts';
import { bytesText } from '../../lib/platform/text-table.ts';
import { type Credentials, NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';
import { AGENT_STATUS } from '../fleet/agent-client.ts';
import type { Patient, Report } from './findings.ts';

const TIMEOUT = { timeoutMs: 5_000 };
const SERVING_STATUS = '/v1/status';
/** Nothing depends on clocks, but people read times of several hosts beside each other. */
const SKEW_MAX_MS = 60_000;

export interface AgentsWish {
  readonly patient: Patient;
  readonly agents: readonly string[];
  readonly credentials: Credentials;
  /** Rows older than this are stale; undefined: never. */
  readonly staleMs: number | undefined;
  /** Of the version that the channel points to, all shards. */
  readonly versionBytes: number;
}

export async function checkAgents(wish: AgentsWish, report: Report): Promise<void> {
  await Promise.all(
    wish.agents.map(async (address) => {
      const peer = { address, credentials: wish.credentials, name: 'cube-agent' };
      const sentMs = wallClockMs();
      let status: JsonReader;
      try {
        status = await callJson(peer, AGENT_STATUS, TIMEOUT);
        checkSkew(status, address, sentMs, report);
        checkAgent(status, address, wish, report);
      } catch (error) {
        const { code, message } = CubeError.from(error);
        const denied = code === 'DENIED';
        report({
          severity: 'error',
          check: denied ? 'agent-denied' : 'agent-down',
          where: address,
          what: message,
          todo: denied
            ? 'give it a token (token-file in its agent.yaml) and doctor the same by --agent-token-file, or certificates to both (tls-cert, tls-key, tls-ca)'
            : 'start it again: systemctl restart cube-agent; its servers go on with what they have until then',
        });
      }
    }),
  );
}

function checkSkew(status: JsonReader, where: string, sentMs: number, report: Report): void {
  const theirsMs = Date.parse(status.field('at').string());
  const aheadMs = theirsMs < sentMs ? theirsMs - sentMs : Math.max(0, theirsMs - wallClockMs());
  if (Math.abs(aheadMs) <= SKEW_MAX_MS) return;
  report({
    severity: 'note',
    check: 'clock-skew',
    where,
    what: `its clock is ${Math.round(Math.abs(aheadMs) / 1000)} s ${aheadMs > 0 ? 'ahead' : 'behind'}: nothing depends on it, but times in logs and histories mislead`,
    todo: 'let the host follow a time server (timedatectl set-ntp true)',
  });
}

function checkAgent(status: JsonReader, where: string, wish: AgentsWish, report: Report): void {
  const { patient, staleMs } = wish;
  const disk = status.field('disk');
  const keepFree = disk.field('keepFreeBytes').number();
  const free = disk.optional('freeBytes', (field) => field.number());
  if (free !== undefined && free - keepFree < wish.versionBytes) {
    report({
      severity: 'warning',
      check: 'disk-short',
      where,
      what: `${bytesText(Math.max(0, free))} are free, of which ${bytesText(keepFree)} stay free: another version may not fit (${bytesText(wish.versionBytes)})`,
      todo: 'lower keep-versions or keep-bytes in its agent.yaml, or give data-dir a larger disk',
    });
  }
  const bundles = status.field('bundles').items();
  const own = bundles.find((item) => item.field('bundle').string() === patient.bundle);
  if (own === undefined) {
    report({
      severity: 'error',
      check: 'agent-without-bundle',
      where,
      what: `does not keep ${patient.bundle}, whose servers the fleet places on its host`,
      todo: `name ${patient.bundle} under bundles in its agent.yaml, and restart it`,
    });
  }
  for (const problem of [status, ...(own ? [own] : [])].flatMap((item) =>
    item.field('problems').items(),
  )) {
    report({
      severity: 'error',
      check: 'agent-problem',
      where,
      what: `${problem.field('what').string()}: ${problem.field('code').string()} ${problem.field('message').string()}`,
      todo: `it tries again by itself; once mended, at once with curl -X POST http://${where}/agent/v1/poke`,
    });
  }
  const [first] = own?.field('channels').items() ?? [];
  const freshness = first?.optional('freshnessSeconds', (field) => field.number());
  if (staleMs !== undefined && freshness !== undefined && freshness * 1000 > staleMs) {
    report({
      severity: 'warning',
      check: 'stale',
      where,
      what: `the rows that its servers answer with are ${Math.round(freshness)} s old`,
      todo: 'see whether versions are published (cube-agent history) or do not arrive (cube-agent status)',
    });
  }
}

export interface ServingsWish {
  readonly patient: Patient;
  readonly servings: readonly string[];
  /** What the channel points to. */
  readonly version: string | undefined;
}

export async function checkServings(wish: ServingsWish, report: Report): Promise<void> {
  await Promise.all(
    wish.servings.map(async (address) => {
      const peer = { address, credentials: NO_CREDENTIALS, name: 'serving' };
      try {
        const status = await callJson(peer, SERVING_STATUS, TIMEOUT);
        for (const model of status.field('models').items()) {
          checkServing(model, address, wish, report);
        }
      } catch (error) {
        report({
          severity: 'error',
          check: 'serving-down',
          where: address,
          what: CubeError.from(error).message,
          todo: 'start it again; its log says why it ended',
        });
      }
    }),
  );
}

/** One model that follows the channel. */
function checkServing(
  model: JsonReader,
  address: string,
  { patient, version }: ServingsWish,
  report: Report,
): void {
  if (version === undefined || model.field('channel').string() !== patient.channel) return;
  const active = model.optional('active', (field) => field.string());
  if (active === version) return;
  const problem = model.optional('problem', (field) => field.string());
  const failed = model
    .field('failed')
    .items()
    .map((item) => `${item.field('version').string()}: ${item.field('message').string()}`);
  const why = [problem, ...failed].filter((text) => text !== undefined).join('; ');
  report({
    severity: 'error',
    check: 'serving-behind',
    where: `${address}, model ${model.field('model').string()}`,
    what: `answers with version ${active ?? 'none'}, channel ${patient.channel} wants ${version}${why === '' ? '' : ` (${why})`}`,
    todo: 'it moves when every shard has a replica that holds the version and the warm-up passes: mend what it names',
  });
}
