/** `cube-agent doctor`: reports what is wrong with a bundle and what to do about it. */
import { areOnlyNotes, type Finding } from '../../lib/core/findings.ts';
import { type Command, EXIT_FAILED, parseIntegerBetween } from '../../lib/platform/cli.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import { formatTable, printLine } from '../../lib/platform/terminal-output.ts';
import {
  type CallerOptions,
  createAgentCredentials,
  createServerCredentials,
} from '../../lib/rpc/credential-options.ts';
import { diagnose } from '../doctor/doctor.ts';
import {
  addAgentCredentialOption,
  addChannelOptions,
  addJsonOption,
  addServerCredentialOptions,
  type ChannelOptions,
  collectEndpoints,
  openRepositoryWithKeys,
  readFleet,
} from './options.ts';

interface DoctorOptions extends ChannelOptions, CallerOptions {
  readonly fleet?: string;
  readonly serving?: readonly string[];
  readonly deep?: boolean;
  readonly maxAgeMinutes?: number;
  readonly json?: boolean;
}

const EXAMPLES = `
Nothing is changed. cube-agent status prints the state without checks; cube-check checks files.

Exit code: 0 no problem, or only notes; 1 an error or a warning; 2 wrong usage.

Examples:
  cube-agent doctor --repository /srv/models --bundle ctr-dnn --fleet fleet.json
  cube-agent doctor --repository /srv/models --bundle ctr-dnn --fleet fleet.json \\
    --serving 10.0.0.9:9000 --max-age-minutes 30
  cube-agent doctor --repository s3://bucket/models --bundle ctr-dnn --deep --json`;

export function addDoctorCommand(program: Command): void {
  const command = addChannelOptions(program.command('doctor'));
  addJsonOption(addAgentCredentialOption(addServerCredentialOptions(command)))
    .description('Report what is wrong with a bundle and what to do about it')
    .option('--fleet <file>', 'fleet.json; check its servers and agents (default: none)')
    .option(
      '--serving <host:port>',
      'Serving process to check; repeatable (default: none)',
      collectEndpoints,
    )
    .option('--deep', 'Read every layer in use and check its SHA-256 (default: only its size)')
    .option(
      '--max-age-minutes <n>',
      'Report channels and hosts whose version was activated more than this many minutes ago ' +
        '(default: no limit)',
      parseIntegerBetween(1, 1_000_000),
    )
    .addHelpText('after', EXAMPLES)
    .action(doctor);
}

async function doctor(options: DoctorOptions): Promise<void> {
  const { repository, bundle, channel, fleet, serving = [], deep = false } = options;
  const { maxAgeMinutes } = options;
  const progress = deep ? startProgress(`reading ${bundle}`, 0, 'bytes') : undefined;
  let readBytes = 0;
  const findings = await diagnose({
    repository: openRepositoryWithKeys(options),
    target: { repository, bundle, channel },
    deep,
    staleMs: maxAgeMinutes === undefined ? undefined : maxAgeMinutes * 60_000,
    fleet: fleet === undefined ? undefined : { path: fleet, read: () => readFleet(fleet) },
    servings: serving,
    serverCredentials: createServerCredentials(options),
    agentCredentials: createAgentCredentials(options),
    onBytes: (bytes) => {
      readBytes += bytes;
      progress?.update(readBytes);
    },
  }).finally(() => progress?.stop());
  const isHealthy = areOnlyNotes(findings);
  printLine(options.json ? formatJson(findings, options) : formatReport(findings));
  if (!isHealthy) process.exitCode = EXIT_FAILED;
}

/** The shape is docs/schemas/doctor.schema.json. */
function formatJson(findings: readonly Finding[], { bundle, channel }: DoctorOptions): string {
  const isWell = areOnlyNotes(findings);
  const published = findings.map(({ severity, check, where, what, todo }) => ({
    severity,
    check,
    where,
    what,
    todo,
  }));
  return JSON.stringify({ bundle, channel, isWell, findings: published });
}

function formatReport(findings: readonly Finding[]): string {
  if (findings.length === 0) return 'no problems found';
  const rows = findings.map(({ severity, check, where, what }, i) => [
    String(i + 1),
    severity,
    check,
    where,
    what,
  ]);
  const remedies = findings.map(({ todo }, i) => `  ${i + 1}. ${todo}`);
  return [
    formatTable(['', 'SEVERITY', 'CHECK', 'WHERE', 'WHAT'], rows),
    '',
    'What to do:',
    ...remedies,
  ].join('\n');
}
