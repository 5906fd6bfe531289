/**
 * Runs the gate as a child process, `cube-agent gate`. The exit code is the verdict; the report is
 * stored in the repository.
 */
import { fileURLToPath } from 'node:url';
import { toArguments } from '../../lib/platform/arguments.ts';
import { EXIT_USAGE } from '../../lib/platform/cli.ts';
import { runChildCommand } from '../../lib/platform/one-shot-process.ts';
import type { GateOutcome } from './rollout-view.ts';

export interface GateProcessOptions {
  readonly repository: string;
  readonly trustedKeys: string | undefined;
  readonly bundle: string;
  /** fleet.json; its servers have loaded both versions. */
  readonly fleetFile: string;
  /** Serving processes, which may shadow requests to the version. */
  readonly serving: readonly string[];
  /** Additional flags of `cube-agent gate`. */
  readonly flags: readonly string[];
  readonly holder: string;
  /** Of one run. */
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

const MAIN = fileURLToPath(new URL('../main.js', import.meta.url));
const SUMMARY_CHARS_MAX = 500;
/** What the command prints before the reason. */
const ERROR_PREFIX = /^cube-agent: the gate could not run: /;

/** @param active the baseline version; undefined: no version is active yet */
export async function runGateProcess(
  options: GateProcessOptions,
  version: string,
  active: string | undefined,
): Promise<GateOutcome> {
  const { repository, bundle, fleetFile, trustedKeys, serving, flags, holder } = options;
  const args = [
    MAIN,
    'gate',
    ...toArguments({
      repository,
      bundle,
      version,
      against: active,
      noAgainst: active === undefined,
      fleet: fleetFile,
      by: holder,
      shadow: serving,
      trustedKeys,
    }),
    ...flags,
  ];
  const { code, stdout, stderr, timedOut } = await runChildCommand(args, options);
  if (timedOut) {
    const summary = `it did not end within ${options.timeoutMs / 1_000} s and was stopped`;
    return { verdict: 'error', summary, isFinal: false };
  }
  const report = /stored as report (\d+)/.exec(stdout)?.[1];
  const where =
    report === undefined ? '' : ` (report ${report}: cube-agent gate --show ${version})`;
  if (code === 0) return { verdict: 'pass', summary: `passed the gate${where}` };
  if (code === 1) return { verdict: 'fail', summary: `failed the gate${where}` };
  const text = stderr.trim().replace(ERROR_PREFIX, '').slice(-SUMMARY_CHARS_MAX);
  const summary = text || `ended with ${code ?? 'a signal'}`;
  return { verdict: 'error', summary, isFinal: code === EXIT_USAGE };
}
