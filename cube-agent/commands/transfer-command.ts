/** `cube-agent transfer`: what a transfer.conf of Cube's says, and the files that say the same here. */
import { CubeError } from '../../lib/core/errors.ts';
import { formatFleet } from '../../lib/core/fleet.ts';
import type { Command } from '../../lib/platform/cli.ts';
import { putFileIfAbsent } from '../../lib/platform/files.ts';
import { print, table } from '../../lib/platform/text-table.ts';
import { cubeConfOf, fleetOf, readTransferConf, type TransferConf } from '../cube/transfer-conf.ts';

interface TransferOptions {
  readonly config: string;
  readonly check?: boolean;
  readonly fleetOut?: string;
  readonly cubeConfOut?: string;
}

const EXAMPLES = `
Examples:
  cube-agent transfer --config /home/cube/conf/transfer.conf --check
  cube-agent transfer --config transfer.conf --fleet-out fleet.json --cube-conf-out cube.conf
docs/cube-migration.md goes on from there, host by host.`;

export function addTransferCommand(program: Command): void {
  program
    .command('transfer')
    .description("explain a transfer.conf of Cube's, and write the fleet it names")
    .requiredOption('--config <file>', 'transfer.conf')
    .option('--check', 'fail on lines that mean nothing')
    .option('--fleet-out <file>', 'write its servers as fleet.json')
    .option('--cube-conf-out <file>', 'write its servers as a cube.conf')
    .addHelpText('after', EXAMPLES)
    .action(transfer);
}

async function transfer({ config, check, fleetOut, cubeConfOut }: TransferOptions): Promise<void> {
  const conf = readTransferConf(config);
  print(explained(conf));
  if (check && conf.warnings.length > 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${config}: ${conf.warnings.length} lines mean nothing; correct or remove them`,
    );
  }
  write(fleetOut, formatFleet(fleetOf(conf)));
  write(cubeConfOut, cubeConfOf(conf));
}

function explained(conf: TransferConf): string {
  const { dictName, mode, donefileAddress, shardNum, copyNum, instances, warnings } = conf;
  const files = mode === 'base_only' ? 'base.txt' : 'base.txt and patch.txt';
  const rows = instances.map(({ shard, replica, server, deployPath, agent }) => [
    ...[String(shard), String(replica), server, deployPath, agent],
  ]);
  return [
    `bundle ${dictName}: ${shardNum} shards, ${copyNum} replicas of each`,
    `donefiles: ${files} of ${donefileAddress}`,
    'not used: download_mode, wget_port, buildtool_local, output_address, tmp_address, transfer_address, the',
    '  deploy_path of [default]: cube-builder publishes to a repository, and agents fetch from there',
    '',
    table(['SHARD', 'REPLICA', 'SERVER', 'DEPLOY PATH', 'AGENT'], rows),
    ...warnings.map((warning) => `warning: ${warning}`),
  ].join('\n');
}

function write(path: string | undefined, text: string): void {
  if (path === undefined) return;
  if (!putFileIfAbsent(path, text)) {
    throw new CubeError('CONFLICT', `${path} is there already; remove it, or name another file`);
  }
  print(`wrote ${path}`);
}
