/** The options that say where rows are: files, a version of a repository, servers. */
import { basename, dirname } from 'node:path';
import { CubeConf } from '../../lib/client/cube-conf.ts';
import { FleetFile } from '../../lib/client/fleet-file.ts';
import type { RouteOptions } from '../../lib/client/fleet-routes.ts';
import { readServerStatus } from '../../lib/client/server-status.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { type Fleet, type Replica, shardMapOf } from '../../lib/core/fleet.ts';
import { type Manifest, shardNumOf } from '../../lib/core/manifest.ts';
import {
  type Command,
  InvalidArgumentError,
  integerBetween,
  nameOption,
  optionWithEnv,
} from '../../lib/platform/cli.ts';
import { fileExists, isFolder } from '../../lib/platform/files.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { versionOfFolder } from '../../lib/repository/version-folder.ts';
import {
  addCallerTlsOptions,
  type CallerFlags,
  serverCredentials,
} from '../../lib/rpc/credential-options.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';
import { ClusterSource, DictSource } from './cluster-source.ts';
import { FileSource, tableOfLayer } from './file-source.ts';
import type { RowSource } from './row-source.ts';

/** Tells of wrong usage and ends. */
export type Usage = (text: string) => never;

export interface FileFlags {
  readonly file?: string;
  readonly repository?: string;
  readonly bundle?: string;
  readonly version?: string;
  readonly channel: string;
}

export interface SourceFlags extends FileFlags, CallerFlags {
  readonly fleet?: string;
  readonly server?: readonly string[];
  readonly cubeConf?: string;
  readonly dict?: string;
  readonly timeoutMs: number;
}

export function addFileOptions(command: Command): Command {
  return command
    .option('--file <path>', 'a layer file, or the folder of a version')
    .option('--repository <folder>', 'where versions live')
    .option('--bundle <name>', 'the model', nameOption('bundle'))
    .option('--version <name>', 'the version', nameOption('version'))
    .option('--channel <name>', 'else the one it points to', nameOption('channel'), 'stable');
}

export function addSourceOptions(command: Command): Command {
  const options = addFileOptions(command)
    .option('--fleet <file>', 'ask the servers that fleet.json names for the version')
    .option(
      '--server <host:port>',
      'the same of these servers; may be given several times',
      endpoints,
    )
    .option('--cube-conf <file>', "ask the servers of Cube's cube.conf by its seek")
    .option('--dict <name>', 'with --cube-conf, --fleet or --server: the dict to seek in')
    .option('--timeout-ms <ms>', 'for a lookup', integerBetween(1, 600_000), 2_000)
    .addOption(
      optionWithEnv(
        '--control-token-file <file>',
        'the token of the servers, where their control calls ask for one',
        'CUBE_CONTROL_TOKEN_FILE',
      ),
    );
  return addCallerTlsOptions(options);
}

function endpoints(text: string, before: readonly string[] = []): string[] {
  try {
    parseEndpoint(text);
  } catch (error) {
    throw new InvalidArgumentError((error as Error).message);
  }
  return [...before, text];
}

/** A version in a repository's folder. */
export interface LocatedVersion {
  readonly root: string;
  readonly manifest: Manifest;
}

/** @returns undefined when the options name none */
export async function locateVersion(
  flags: FileFlags,
  usage: Usage,
): Promise<LocatedVersion | undefined> {
  const { file, repository: root, bundle, channel } = flags;
  if (file !== undefined) {
    const folder = basename(file) === 'manifest.json' ? dirname(file) : file;
    if (!isFolder(folder) || (folder !== file && !fileExists(file))) return undefined;
    const place = versionOfFolder(folder);
    return locate(place.root, place.bundle, place.version);
  }
  if (root === undefined) return undefined;
  if (bundle === undefined) return usage('--repository needs --bundle');
  if (flags.version !== undefined) return locate(root, bundle, flags.version);
  const { pointer } = await openRepository(root).channel(bundle, channel);
  if (pointer !== undefined) return locate(root, bundle, pointer.version);
  throw new CubeError(
    'NOT_FOUND',
    `channel ${channel} of ${bundle} in ${root} points nowhere: say --version`,
  );
}

async function locate(root: string, bundle: string, version: string): Promise<LocatedVersion> {
  const repository = openRepository(root);
  return { root: repository.location, manifest: await repository.manifest(bundle, version) };
}

function checkChoice(flags: SourceFlags, usage: Usage): void {
  const { file, repository, fleet, server, cubeConf, dict } = flags;
  const count = (...given: unknown[]): number => given.filter((one) => one !== undefined).length;
  if (count(file, repository) > 1) usage('--file and --repository exclude each other');
  if (count(fleet, server, cubeConf) > 1) {
    usage('--fleet, --server and --cube-conf exclude each other');
  }
  if (count(file, repository, fleet, server, cubeConf) === 0) {
    usage('say where the rows are: --file, --repository, --fleet, --server or --cube-conf');
  }
  if (cubeConf !== undefined && dict === undefined) usage('--cube-conf needs --dict');
  const remote = count(fleet, server) > 0;
  if (remote && count(file, repository) === 0 && dict === undefined) {
    usage(
      '--fleet and --server need a version (--repository, or --file with its folder) or a --dict',
    );
  }
  if (dict !== undefined && count(file, repository) > 0) {
    usage(
      '--dict asks for whatever version the servers have active: leave --repository and --file out',
    );
  }
}

/** @throws CubeError when it cannot be opened */
export async function openSource(flags: SourceFlags, usage: Usage): Promise<RowSource> {
  checkChoice(flags, usage);
  const { file, fleet, server, cubeConf, dict, timeoutMs } = flags;
  const located = await locateVersion(flags, usage);
  if (cubeConf !== undefined) {
    const conf = await CubeConf.open(cubeConf);
    conf.policyOf(dict!);
    return dictSource(dict!, conf.routes, timeoutMs);
  }
  if (fleet === undefined && server === undefined) {
    if (located !== undefined) return FileSource.ofVersion(located.root, located.manifest);
    return new FileSource([tableOfLayer(file!)], undefined);
  }
  const name = dict ?? located?.manifest.bundle;
  if (name === undefined) return usage('--file must be the folder of a version here');
  const routes = await routesOf(flags, name, located?.manifest);
  if (dict !== undefined) return dictSource(dict, routes, timeoutMs);
  return new ClusterSource(located!.manifest, routes, timeoutMs);
}

function dictSource(dict: string, routes: RouteOptions, timeoutMs: number): DictSource {
  const maps = routes.fleet().bundles.get(dict) ?? [];
  const { shardNum } = maps[0] ?? shardMapOf(routes.fleet(), dict, 0);
  return new DictSource(dict, shardNum, routes, timeoutMs);
}

async function routesOf(
  flags: SourceFlags,
  bundle: string,
  manifest: Manifest | undefined,
): Promise<RouteOptions> {
  const { fleet: path, server = [] } = flags;
  if (path !== undefined) {
    const file = new FleetFile(path, { onInvalid: () => undefined });
    return { fleet: () => file.current() };
  }
  const fleet = await fleetOf(
    server,
    bundle,
    manifest && shardNumOf(manifest),
    serverCredentials(flags),
  );
  return { fleet: () => fleet };
}

/**
 * A fleet of servers that say which shards they serve. One that does not answer may be of any shard that no other serves: keys of
 * those are then unavailable.
 * @param shardNum undefined: what the servers say
 */
async function fleetOf(
  addresses: readonly string[],
  bundle: string,
  shardNum: number | undefined,
  credentials: Credentials,
): Promise<Fleet> {
  const silent: Replica[] = [];
  const known = new Map<number, Replica[]>();
  let count = shardNum;
  let failure: unknown;
  for (const address of addresses) {
    const replica = { data: address, control: address, group: 'default' };
    try {
      const status = await readServerStatus(address, { credentials });
      count ??= status.shardNum;
      if (status.shardNum !== count) {
        throw new CubeError(
          'WRONG_SHARD',
          `${address} serves a shard of ${status.shardNum}, not of ${count}`,
        );
      }
      known.set(status.shardIndex, [...(known.get(status.shardIndex) ?? []), replica]);
    } catch (error) {
      if (CubeError.from(error).code === 'WRONG_SHARD') throw error;
      failure = error;
      silent.push(replica);
    }
  }
  if (count === undefined) throw failure;
  const shards = Array.from({ length: count }, (_, shard) => known.get(shard) ?? silent);
  return { bundles: new Map([[bundle, [{ shardNum: count, shards }]]]) };
}
