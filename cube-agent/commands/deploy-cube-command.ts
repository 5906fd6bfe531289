/** `cube-agent deploy-cube`: a version onto C++ cube-servers, verified by asking them. */

import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { shardNumOf } from '../../lib/core/manifest.ts';
import { type Command, integerBetween, nameOption } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { print } from '../../lib/platform/text-table.ts';
import { type CallerFlags, serverCredentials } from '../../lib/rpc/credential-options.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';
import type { CubeTarget } from '../cube/cube-deploy.ts';
import { type CubeInstance, readTransferConf, type TransferConf } from '../cube/transfer-conf.ts';
import { addTrustedKeysOption, openWithKeys } from './keys.ts';
import { addTokenOption, collectEndpoints } from './options.ts';

interface DeployOptions extends CallerFlags {
  readonly config: string;
  readonly repository: string;
  readonly version: string;
  readonly bundle?: string;
  readonly table?: string;
  readonly host?: string;
  readonly server?: readonly string[];
  readonly samples: number;
  readonly loadTimeoutMs: number;
  readonly dryRun?: boolean;
  readonly trustedKeys?: string;
}

const EXAMPLES = `
Example, on host 10.0.0.1:
  cube-agent deploy-cube --config /home/cube/conf/transfer.conf --host 10.0.0.1 \\
    --repository /srv/models --version 1628131462_1628131999
One server after another. A server that answers a sampled key otherwise goes back to the version it had, and the command
stops. Back: deploy the version before.`;

export function addDeployCubeCommand(program: Command): void {
  addTrustedKeysOption(addTokenOption(program.command('deploy-cube')))
    .description('bring a version to C++ cube-servers: write, load, switch, verify')
    .requiredOption('--config <file>', 'transfer.conf: which servers, and where they run')
    .requiredOption('--repository <place>', 'where versions live')
    .requiredOption('--version <name>', 'the version', nameOption('version'))
    .option('--bundle <name>', 'the model (default: dict_name)', nameOption('bundle'))
    .option('--table <name>', 'of several', nameOption('table'))
    .option('--host <host>', 'only servers of this host: their deploy paths are here')
    .option('--server <host:port>', 'only this one; once for each', collectEndpoints)
    .option('--samples <n>', 'keys to verify with', integerBetween(4, 100_000), 10_000)
    .option('--load-timeout-ms <n>', 'of a load', integerBetween(1, 86_400_000), 3_600_000)
    .option('--dry-run', 'say which servers, and whether they can take the version')
    .addHelpText('after', EXAMPLES)
    .action(deploy);
}

async function deploy(options: DeployOptions): Promise<void> {
  const { version, samples, loadTimeoutMs } = options;
  const conf = readTransferConf(options.config);
  const repository = openWithKeys(options);
  const manifest = await repository.manifest(options.bundle ?? conf.dictName, version);
  if (shardNumOf(manifest) !== conf.shardNum) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `version ${version} has ${shardNumOf(manifest)} shards, ${options.config} says ${conf.shardNum}: build it again`,
    );
  }
  const { exportedTable } = await import('../cube/shard-export.ts');
  const table = exportedTable(manifest, options.table);
  const instances = chosen(conf, options);
  if (options.dryRun) {
    for (const { server, shard, deployPath } of instances) {
      print(
        `${server}: would get shard ${shard} of ${version} in ${join(deployPath, 'data', version)}`,
      );
    }
    return;
  }
  const { deployCube } = await import('../cube/cube-deploy.ts');
  const targets = await Promise.all(instances.map((one) => targetOf(one, conf, options)));
  try {
    const tell = (text: string): void => print(text);
    await deployCube(targets, { repository, manifest, table, samples, loadTimeoutMs, tell });
  } finally {
    for (const { client } of targets) client.close();
  }
}

function chosen(
  { instances }: TransferConf,
  { host, server, config }: DeployOptions,
): CubeInstance[] {
  const unknown = server?.find((address) => instances.every((one) => one.server !== address));
  if (unknown !== undefined) throw new CubeError('NOT_FOUND', `${config} has no server ${unknown}`);
  const found = instances.filter(
    (one) =>
      (host === undefined || parseEndpoint(one.server).host === host) &&
      (server === undefined || server.includes(one.server)),
  );
  if (found.length > 0) return found;
  const hosts = new Set(instances.map((one) => parseEndpoint(one.server).host));
  throw new CubeError(
    'NOT_FOUND',
    `${config} has no server on ${host} (hosts: ${[...hosts].join(', ')})`,
  );
}

async function targetOf(
  { server, shard, deployPath }: CubeInstance,
  { shardNum }: TransferConf,
  options: DeployOptions,
): Promise<CubeTarget> {
  const { CubeServerClient } = await import('../cube/cube-server-client.ts');
  const credentials = serverCredentials(options);
  const client = new CubeServerClient({
    ...{ address: server, shard, shardNum, credentials },
    clock: systemClock,
  });
  return { client, shard, dataFolder: join(deployPath, 'data') };
}
