/** The gate as a process of its own: `cube-agent gate`, whose exit code is the verdict and whose report is in the repository. */
import { fileURLToPath } from 'node:url';
import { runChildCommand } from '../../lib/platform/child-command.ts';
import { EXIT_USAGE } from '../../lib/platform/cli.ts';
import type { GateOutcome } from './rollout-view.ts';

export interface GateProcessOptions {
  readonly repository: string;
  readonly trustedKeys: string | undefined;
  readonly bundle: string;
  /** fleet.json: its servers hold both versions. */
  readonly fleetFile: string;
  /** Further flags of `cube-agent gate`. */
  readonly flags: readonly string[];
  readonly holder: string;
  readonly signal: AbortSignal;
}

const MAIN = fileURLToPath(new URL('../main.js', import.meta.url));
const SUMMARY_MAX = 500;
/** What the command says before the reason. */
const NOT_RUN = /^cube-agent: the gate could not run: /;

/** @param active what to compare with; undefined: nothing is active yet */
export async function runGateProcess(
  options: GateProcessOptions,
  version: string,
  active: string | undefined,
): Promise<GateOutcome> {
  const { repository, bundle, fleetFile, trustedKeys, flags, holder, signal } = options;
  const args = [
    ...[MAIN, 'gate', '--repository', repository, '--bundle', bundle, '--version', version],
    ...(active === undefined ? ['--no-against'] : ['--against', active]),
    ...['--fleet', fleetFile, '--by', holder],
    ...(trustedKeys === undefined ? [] : ['--trusted-keys', trustedKeys]),
    ...flags,
  ];
  const { code, stdout, stderr } = await runChildCommand(args, signal);
  const report = /stored as report (\d+)/.exec(stdout)?.[1];
  const where =
    report === undefined ? '' : ` (report ${report}: cube-agent gate --show ${version})`;
  if (code === 0) return { verdict: 'pass', summary: `passed the gate${where}` };
  if (code === 1) return { verdict: 'fail', summary: `failed the gate${where}` };
  const text = stderr.trim().replace(NOT_RUN, '').slice(-SUMMARY_MAX);
  const summary = text || `ended with ${code ?? 'a signal'}`;
  return { verdict: 'error', summary, isFinal: code === EXIT_USAGE };
}
