/** `cube-agent transfer`: explains a transfer.conf of Cube and converts it to fleet.json. */
import { CubeError } from '../../lib/core/errors.ts';
import { formatFleet } from '../../lib/core/fleet.ts';
import type { Command } from '../../lib/platform/cli.ts';
import { fileExists, putFileIfAbsent } from '../../lib/platform/files.ts';
import { formatTable, printLine } from '../../lib/platform/terminal-output.ts';
import { readTransferConf, type TransferConf, toCubeConf, toFleet } from '../cube/transfer-conf.ts';
import { addDryRunOption, addJsonOption, withDryRunNote } from './options.ts';

interface TransferOptions {
  readonly config: string;
  readonly check?: boolean;
  readonly fleetOut?: string;
  readonly cubeConfOut?: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

const EXAMPLES = `
Examples:
  cube-agent transfer --config /home/cube/conf/transfer.conf --check
  cube-agent transfer --config transfer.conf --fleet-out fleet.json --cube-conf-out cube.conf

docs/cube-migration.md describes the next steps, host by host.`;

export function addTransferCommand(program: Command): void {
  addJsonOption(addDryRunOption(program.command('transfer')))
    .description(
      'Print what a transfer.conf of PaddlePaddle Cube means, and convert it to fleet.json',
    )
    .requiredOption('--config <file>', 'transfer.conf to read')
    .option('--check', 'Fail if a line is unknown or has no effect (default: print a warning)')
    .option(
      '--fleet-out <file>',
      'fleet.json to write the servers of transfer.conf to (default: none)',
    )
    .option(
      '--cube-conf-out <file>',
      'cube.conf to write the servers of transfer.conf to (default: none)',
    )
    .addHelpText('after', EXAMPLES)
    .action(transfer);
}

async function transfer(options: TransferOptions): Promise<void> {
  const { config, check, fleetOut, cubeConfOut, dryRun = false, json } = options;
  const conf = readTransferConf(config);
  if (!json) printLine(describeConf(conf));
  if (check && conf.warnings.length > 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${config}: unknown or invalid lines: ${conf.warnings.length}; correct or remove them`,
    );
  }
  const outputs: readonly (readonly [string | undefined, string])[] = [
    [fleetOut, formatFleet(toFleet(conf))],
    [cubeConfOut, toCubeConf(conf)],
  ];
  const written: string[] = [];
  for (const [path, text] of outputs) {
    if (path === undefined) continue;
    writeIfAbsent(path, text, dryRun);
    written.push(path);
    if (!json) printLine(withDryRunNote(`${dryRun ? 'would write' : 'wrote'} ${path}`, options));
  }
  if (json) printLine(JSON.stringify({ ...conf, written, dryRun }));
}

function describeConf(conf: TransferConf): string {
  const { dictName, mode, donefileAddress, shardNum, copyNum, instances, warnings } = conf;
  const files = mode === 'base_only' ? 'base.txt' : 'base.txt and patch.txt';
  const rows = instances.map(({ shard, replica, server, deployPath, agent }) => [
    String(shard),
    String(replica),
    server,
    deployPath,
    agent,
  ]);
  return [
    `bundle ${dictName}: ${shardNum} shards, ${copyNum} replicas of each`,
    `donefiles: ${files} of ${donefileAddress}`,
    'not used: download_mode, wget_port, buildtool_local, output_address, tmp_address,',
    '  transfer_address and deploy_path of [default]: cube-builder publishes to a repository,',
    '  and agents fetch from there',
    '',
    formatTable(['SHARD', 'REPLICA', 'SERVER', 'DEPLOY PATH', 'AGENT'], rows),
    ...warnings.map((warning) => `warning: ${warning}`),
  ].join('\n');
}

function writeIfAbsent(path: string, text: string, dryRun: boolean): void {
  if (dryRun ? !fileExists(path) : putFileIfAbsent(path, text)) return;
  throw new CubeError('CONFLICT', `${path} already exists; remove it, or name another file`);
}
