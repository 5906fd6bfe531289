/** A repository, a data folder and stand-in servers: what an agent finds on a host. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';
import { makeVersion, temporaryFolder, type VersionWish } from '../repository/fixtures.ts';
import { type ControlServer, startServers } from './control-server.ts';
import { type Running, runAgent } from './processes.ts';

export interface Host {
  readonly folder: string;
  readonly location: string;
  readonly repository: Repository;
  readonly dataDir: string;
  readonly servers: readonly ControlServer[];
}

export const by: { by: string; reason: string } = { by: 'test', reason: 'test' };

export async function makeHost(t: TestContext, shardNum: number): Promise<Host> {
  const folder = temporaryFolder(t);
  const location = join(folder, 'repository');
  const dataDir = join(folder, 'data');
  const repository = openRepository(location, { create: true });
  return {
    folder,
    location,
    repository,
    dataDir,
    servers: await startServers(t, shardNum, dataDir),
  };
}

export async function publish(host: Host, wish: VersionWish): Promise<void> {
  await host.repository.publish(makeVersion(join(host.folder, 'built'), wish));
}

export function start(
  t: TestContext,
  host: Host,
  servers: readonly ControlServer[] = host.servers,
  ...more: string[]
): Running {
  const { location, dataDir } = host;
  const addresses = servers.map(({ address }) => address);
  return runAgent(t, { repository: location, dataDir, servers: addresses }, ...more);
}

/** For `until`: true, or what each server has active instead. */
export function allAt(
  version: string,
  servers: readonly ControlServer[],
): () => true | readonly string[] {
  return () =>
    servers.every(({ active }) => active === version) || servers.map(({ active }) => active);
}

export const layersOnDisk = (host: Host): string[] =>
  readdirSync(join(host.dataDir, 'ctr/layers/t'));
export const versionsOnDisk = (host: Host): string[] =>
  readdirSync(join(host.dataDir, 'ctr/versions'));
