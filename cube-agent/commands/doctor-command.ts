/** `cube-agent doctor`: finds what is wrong with a bundle, and says what to do about it. */

import { type Command, EXIT_FAILED, integerBetween } from '../../lib/platform/cli.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import { print, table } from '../../lib/platform/text-table.ts';
import {
  agentCredentials,
  type CallerFlags,
  serverCredentials,
} from '../../lib/rpc/credential-options.ts';
import { examine } from '../doctor/doctor.ts';
import type { Finding } from '../doctor/findings.ts';
import { openWithKeys } from './keys.ts';
import {
  addAgentTokenOption,
  addTargetOptions,
  addTokenOption,
  collectEndpoints,
  readFleet,
  type TargetOptions,
} from './options.ts';

interface DoctorOptions extends TargetOptions, CallerFlags {
  readonly fleet?: string;
  readonly serving?: readonly string[];
  readonly deep?: boolean;
  readonly maxAgeMinutes?: number;
  readonly json?: boolean;
}

const EXAMPLES = `
Nothing is changed. The exit code is 1 when there is an error or a warning; notes are good to know.

Examples:
  cube-agent doctor --repository /srv/models --bundle ctr-dnn --fleet fleet.json
  cube-agent doctor --repository /srv/models --bundle ctr-dnn --fleet fleet.json \\
    --serving 10.0.0.9:9000 --max-age-minutes 30
  cube-agent doctor --repository s3://bucket/models --bundle ctr-dnn --deep --json`;

export function addDoctorCommand(program: Command): void {
  addAgentTokenOption(addTokenOption(addTargetOptions(program.command('doctor'))))
    .description('find what is wrong, and say what to do about it')
    .option('--fleet <file>', 'fleet.json: look at all servers and agents that it names')
    .option('--serving <host:port>', 'a serving process; once for each', collectEndpoints)
    .option('--deep', 'read every wanted layer and check its SHA-256, not only its size')
    .option(
      '--max-age-minutes <n>',
      'rows older than this are stale (default: never)',
      integerBetween(1, 1_000_000),
    )
    .option('--json', 'for programs')
    .addHelpText('after', EXAMPLES)
    .action(doctor);
}

async function doctor(options: DoctorOptions): Promise<void> {
  const { repository, bundle, channel, fleet, serving = [], deep = false } = options;
  const { maxAgeMinutes } = options;
  const progress = deep ? startProgress(`reading ${bundle}`, 0, 'bytes') : undefined;
  let readBytes = 0;
  const findings = await examine({
    repository: openWithKeys(options),
    patient: { repository, bundle, channel },
    deep,
    staleMs: maxAgeMinutes === undefined ? undefined : maxAgeMinutes * 60_000,
    fleet: fleet === undefined ? undefined : { path: fleet, read: () => readFleet(fleet) },
    servings: serving,
    toServers: serverCredentials(options),
    toAgents: agentCredentials(options),
    onBytes: (bytes) => {
      readBytes += bytes;
      progress?.update(readBytes);
    },
  }).finally(() => progress?.stop());
  const isWell = findings.every(({ severity }) => severity === 'note');
  print(options.json ? JSON.stringify({ bundle, channel, isWell, findings }) : format(findings));
  if (!isWell) process.exitCode = EXIT_FAILED;
}

function format(findings: readonly Finding[]): string {
  if (findings.length === 0) return 'nothing is wrong';
  const rows = findings.map(({ severity, check, where, what }) => [severity, check, where, what]);
  const lines = findings.map(({ todo }, i) => `  ${i + 1}. ${todo}`);
  const numbered = rows.map((row, i) => [String(i + 1), ...row]);
  return [
    table(['', 'SEVERITY', 'CHECK', 'WHERE', 'WHAT'], numbered),
    '',
    'What to do:',
    ...lines,
  ].join('\n');
}
