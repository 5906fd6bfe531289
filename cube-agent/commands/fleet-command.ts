/** `cube-agent fleet …`: prints, checks and creates fleet.json. */
import { CubeConf } from '../../lib/client/cube-conf.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { type Fleet, formatFleet } from '../../lib/core/fleet.ts';
import { type Command, parseNameOption } from '../../lib/platform/cli.ts';
import { fileExists, putFileIfAbsent } from '../../lib/platform/files.ts';
import { formatTable, printLine } from '../../lib/platform/terminal-output.ts';
import { FleetDocument } from '../fleet/fleet-document.ts';
import { addFleetChangeCommands } from './fleet-change-commands.ts';
import { addDryRunOption, addJsonOption, withDryRunNote } from './options.ts';

const EXAMPLES = `
Clients, serving, agents and controllers reload fleet.json when it changes. Every change is checked
first and replaces the file atomically.

Examples:
  cube-agent fleet init --fleet fleet.json --bundle ctr-dnn \\
    --data 10.0.0.1:8000 --data 10.0.0.1:8001 --agent 10.0.0.1:8100
  cube-agent fleet show --fleet fleet.json
  cube-agent fleet add-replica --fleet fleet.json --bundle ctr-dnn --data 10.0.0.5:8000 \\
    --agent 10.0.0.5:8100
  cube-agent fleet drain --fleet fleet.json --bundle ctr-dnn --data 10.0.0.5:8000
  cube-agent fleet remove-replica --fleet fleet.json --bundle ctr-dnn --data 10.0.0.5:8000
  cube-agent fleet reshard --fleet fleet.json --repository /srv/models --bundle ctr-dnn \\
    --version 9 --data 10.0.1.1:8000 --data 10.0.1.1:8001 --data 10.0.1.1:8002 \\
    --data 10.0.1.2:8000 --data 10.0.1.2:8001 --data 10.0.1.2:8002 --reason "six shards"
  cube-agent fleet retire --fleet fleet.json --repository /srv/models --bundle ctr-dnn \\
    --shard-num 4`;

export function addFleetCommand(program: Command): void {
  const fleet = program
    .command('fleet')
    .description('Print, check or change fleet.json, also while clients use it')
    .addHelpText('after', EXAMPLES)
    // `--version` of a subcommand is a version of the bundle.
    .enablePositionalOptions();
  const subcommand = (name: string): Command =>
    fleet
      .command(name)
      .exitOverride()
      .showHelpAfterError(`(cube-agent fleet ${name} --help shows the options)`);
  addJsonOption(subcommand('validate'))
    .description('Check fleet.json and print what it contains')
    .requiredOption('--fleet <file>', 'fleet.json to read')
    .action(validate);
  addJsonOption(subcommand('show'))
    .description('List every replica by bundle and shard')
    .requiredOption('--fleet <file>', 'fleet.json to read')
    .option('--bundle <name>', 'Bundle to list (default: all)', parseNameOption('bundle'))
    .action(show);
  addJsonOption(addDryRunOption(subcommand('from-cube-conf')))
    .description("Convert cube.conf, the configuration of Cube's clients, to fleet.json")
    .requiredOption('--cube-conf <file>', 'cube.conf; each dict becomes a bundle')
    .requiredOption('--out <file>', 'fleet.json to write; it must not exist')
    .action(fromCubeConf);
  addFleetChangeCommands(subcommand);
}

async function validate({ fleet: path, json }: { fleet: string; json?: boolean }): Promise<void> {
  const { fleet } = FleetDocument.read(path);
  const bundles = [...fleet.bundles].map(([bundle, maps]) => ({
    bundle,
    shardCounts: maps.map(({ shardNum }) => shardNum),
    replicas: maps.flatMap(({ shards }) => shards.flat()).length,
  }));
  if (json) {
    printLine(JSON.stringify({ valid: true, bundles }));
    return;
  }
  const rows = bundles.map(({ bundle, shardCounts, replicas }) => [
    bundle,
    shardCounts.join(', '),
    String(replicas),
  ]);
  printLine(`${path} is valid\n${formatTable(['BUNDLE', 'SHARDS', 'REPLICAS'], rows)}`);
}

interface ShowOptions {
  readonly fleet: string;
  readonly bundle?: string;
  readonly json?: boolean;
}

async function show({ fleet: path, bundle, json }: ShowOptions): Promise<void> {
  const { fleet } = FleetDocument.read(path);
  if (bundle !== undefined && !fleet.bundles.has(bundle)) {
    const known = [...fleet.bundles.keys()].join(', ') || 'none';
    throw new CubeError('NOT_FOUND', `${path} has no bundle ${bundle} (it has: ${known})`);
  }
  const rows = toReplicaRows(fleet).filter((row) => bundle === undefined || row.bundle === bundle);
  if (json) {
    printLine(JSON.stringify({ replicas: rows }));
    return;
  }
  const cells = rows.map(({ shard, shardNum, data, control, group, agent, weight, ...row }) => [
    row.bundle,
    `${shard}/${shardNum}`,
    data,
    control,
    group,
    agent ?? '-',
    String(weight),
  ]);
  printLine(formatTable(['BUNDLE', 'SHARD', 'DATA', 'CONTROL', 'GROUP', 'AGENT', 'WEIGHT'], cells));
}

interface ReplicaRow {
  readonly bundle: string;
  readonly shard: number;
  readonly shardNum: number;
  readonly data: string;
  readonly control: string;
  readonly group: string;
  readonly agent?: string;
  readonly weight: number;
}

function toReplicaRows({ bundles }: Fleet): ReplicaRow[] {
  return [...bundles].flatMap(([bundle, maps]) =>
    maps.flatMap(({ shardNum, shards }) =>
      shards.flatMap((replicas, shard) =>
        replicas.map((replica) => ({ bundle, shard, shardNum, weight: 1, ...replica })),
      ),
    ),
  );
}

interface FromCubeConfOptions {
  readonly cubeConf: string;
  readonly out: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

async function fromCubeConf(options: FromCubeConfOptions): Promise<void> {
  const { cubeConf, out, dryRun = false, json } = options;
  const conf = await CubeConf.open(cubeConf);
  const fleet = conf.fleet();
  const isNew = dryRun ? !fileExists(out) : putFileIfAbsent(out, formatFleet(fleet));
  if (!isNew) {
    throw new CubeError(
      'CONFLICT',
      `${out} already exists and is not overwritten; name another file`,
    );
  }
  if (!dryRun) FleetDocument.read(out);
  const bundles = [...fleet.bundles.keys()];
  const replicas = toReplicaRows(fleet);
  if (json) {
    printLine(JSON.stringify({ out, bundles, replicas, dryRun }));
    return;
  }
  printLine(withDryRunNote(`${out}: ${bundles.join(', ')}, ${replicas.length} replicas`, options));
}
