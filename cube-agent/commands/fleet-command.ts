/** `cube-agent fleet …`: looks at fleet.json and changes it under traffic. */
import { CubeConf } from '../../lib/client/cube-conf.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { type Fleet, formatFleet } from '../../lib/core/fleet.ts';
import { type Command, nameOption } from '../../lib/platform/cli.ts';
import { putFileIfAbsent } from '../../lib/platform/files.ts';
import { print, table } from '../../lib/platform/text-table.ts';
import { FleetDocument } from '../fleet/fleet-document.ts';
import { addFleetMoves } from './fleet-move-commands.ts';

const EXAMPLES = `
Clients, serving, agents and controllers read fleet.json again when it changes. It changes whole, after it was checked.

Examples:
  cube-agent fleet init --fleet fleet.json --bundle ctr-dnn --data 10.0.0.1:8000 --data 10.0.0.1:8001 --agent 10.0.0.1:8100
  cube-agent fleet show --fleet fleet.json
  cube-agent fleet add-replica --fleet fleet.json --bundle ctr-dnn --data 10.0.0.5:8000 --agent 10.0.0.5:8100
  cube-agent fleet drain --fleet fleet.json --bundle ctr-dnn --data 10.0.0.5:8000
  cube-agent fleet remove-replica --fleet fleet.json --bundle ctr-dnn --data 10.0.0.5:8000
  cube-agent fleet reshard --fleet fleet.json --repository /srv/models --bundle ctr-dnn \\
    --version 9 --data 10.0.1.1:8000 --data 10.0.1.2:8000 --reason "two shards more"
  cube-agent fleet retire --fleet fleet.json --repository /srv/models --bundle ctr-dnn --shard-num 4`;

export function addFleetCommand(program: Command): void {
  const fleet = program
    .command('fleet')
    .description('look at fleet.json, and change it under traffic')
    .addHelpText('after', EXAMPLES)
    // A command's own `--version` is a version of the model.
    .enablePositionalOptions();
  const subcommand = (name: string): Command =>
    fleet
      .command(name)
      .exitOverride()
      .showHelpAfterError(`(cube-agent fleet ${name} --help shows the options)`);
  subcommand('validate')
    .description('say what is wrong with the file, or what is in it')
    .requiredOption('--fleet <file>', 'fleet.json')
    .option('--json', 'for programs')
    .action(validate);
  subcommand('show')
    .description('every replica, by bundle and shard')
    .requiredOption('--fleet <file>', 'fleet.json')
    .option('--bundle <name>', 'only this one', nameOption('bundle'))
    .option('--json', 'for programs')
    .action(show);
  subcommand('from-cube-conf')
    .description("make fleet.json from cube.conf, the configuration of Cube's clients")
    .requiredOption('--cube-conf <file>', 'cube.conf; each dict becomes a bundle')
    .requiredOption('--out <file>', 'fleet.json, which must not be there yet')
    .action(fromCubeConf);
  addFleetMoves(subcommand);
}

async function validate({ fleet: path, json }: { fleet: string; json?: boolean }): Promise<void> {
  const { fleet } = FleetDocument.read(path);
  const bundles = [...fleet.bundles].map(([bundle, maps]) => ({
    bundle,
    shardCounts: maps.map(({ shardNum }) => shardNum),
    replicas: maps.flatMap(({ shards }) => shards.flat()).length,
  }));
  if (json) {
    print(JSON.stringify({ valid: true, bundles }));
    return;
  }
  const rows = bundles.map(({ bundle, shardCounts, replicas }) => [
    bundle,
    shardCounts.join(', '),
    String(replicas),
  ]);
  print(`${path} is valid\n${table(['BUNDLE', 'SHARDS', 'REPLICAS'], rows)}`);
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
  const rows = rowsOf(fleet).filter((row) => bundle === undefined || row.bundle === bundle);
  if (json) {
    print(JSON.stringify({ replicas: rows }));
    return;
  }
  const cells = rows.map(({ shard, shardNum, data, control, group, agent, weight, ...row }) => [
    ...[row.bundle, `${shard}/${shardNum}`, data, control, group],
    ...[agent ?? '-', String(weight)],
  ]);
  print(table(['BUNDLE', 'SHARD', 'DATA', 'CONTROL', 'GROUP', 'AGENT', 'WEIGHT'], cells));
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

function rowsOf({ bundles }: Fleet): ReplicaRow[] {
  return [...bundles].flatMap(([bundle, maps]) =>
    maps.flatMap(({ shardNum, shards }) =>
      shards.flatMap((replicas, shard) =>
        replicas.map((replica) => ({ bundle, shard, shardNum, weight: 1, ...replica })),
      ),
    ),
  );
}

async function fromCubeConf(options: { cubeConf: string; out: string }): Promise<void> {
  const { cubeConf, out } = options;
  const conf = await CubeConf.open(cubeConf);
  const text = formatFleet(conf.fleet());
  if (!putFileIfAbsent(out, text)) {
    throw new CubeError('CONFLICT', `${out} is there already; it is not overwritten`);
  }
  const { fleet } = FleetDocument.read(out);
  print(`${out}: ${[...fleet.bundles.keys()].join(', ')}, ${rowsOf(fleet).length} replicas`);
}
