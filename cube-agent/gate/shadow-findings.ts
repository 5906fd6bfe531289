/**
 * How the candidate answered copies of live requests (shadow traffic), from the reports of running
 * serving processes. docs/traffic.md
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { type ShadowSummary, ShadowTally } from '../../lib/core/shadow.ts';
import { fetchServingText } from './serving-text.ts';

const REPORTS_MAX = 1_000;

export interface ShadowRequirement {
  readonly bundle: string;
  readonly version: string;
  /** The version that answered callers; undefined: any. */
  readonly against: string | undefined;
  readonly requestsMin: number;
}

/**
 * @param endpoints serving processes, host:port
 * @throws CubeError UNAVAILABLE when a process does not answer, or fewer requests were shadowed
 *   than are required: the gate may run again later
 */
export async function readShadowFindings(
  endpoints: readonly string[],
  { bundle, version, against, requestsMin }: ShadowRequirement,
): Promise<ShadowSummary> {
  if (endpoints.length === 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      'shadowRequestsMin needs --shadow <host:port> of the serving processes that shadow requests',
    );
  }
  const tally = new ShadowTally();
  for (const endpoint of endpoints) {
    const text = await fetchServingText(endpoint, '/v1/shadows');
    const json = JsonReader.parse(text, `${endpoint}/v1/shadows`);
    for (const report of json.field('shadows').items({ max: REPORTS_MAX })) {
      const isOurs =
        report.field('bundle').string() === bundle && report.field('version').value === version;
      const isCompared = against === undefined || report.field('against').string() === against;
      if (isOurs && isCompared) tally.addJson(report);
    }
  }
  const seen = tally.requests + tally.failed;
  if (seen >= requestsMin) return tally.summarize();
  throw new CubeError(
    'UNAVAILABLE',
    `${seen} of ${requestsMin} requests were shadowed to version ${version}` +
      `${against === undefined ? '' : ` from version ${against}`} so far (shadowRequestsMin); ` +
      'check that the traffic file shadows them, and retry later',
  );
}
