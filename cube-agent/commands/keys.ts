/** Opening repositories with keys, and the commands that make keys and sign with them. */
import { CubeError } from '../../lib/core/errors.ts';
import { type Command, nameOption, optionWithEnv } from '../../lib/platform/cli.ts';
import { putFileIfAbsent } from '../../lib/platform/files.ts';
import { print } from '../../lib/platform/text-table.ts';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';
import {
  makeKeyPair,
  SigningKey,
  TRUSTED_KEYS_VARIABLE,
  TrustedKeys,
} from '../../lib/repository/signatures.ts';

/** Readable by its owner only. */
const SECRET_MODE = 0o600;

export interface KeyOptions {
  readonly repository: string;
  readonly signingKey?: string | undefined;
  readonly trustedKeys?: string | undefined;
  /** Everything is checked, nothing is written. */
  readonly dryRun?: boolean | undefined;
}

/** For commands that read what a version or a channel is. */
export function addTrustedKeysOption(command: Command): Command {
  return command.addOption(
    optionWithEnv(
      '--trusted-keys <path>',
      'public keys (a file or a folder): take only what one of them has signed',
      TRUSTED_KEYS_VARIABLE,
    ),
  );
}

/** For commands that write entries or manifests. */
export function addSigningKeyOption(command: Command): Command {
  return command.addOption(
    optionWithEnv('--signing-key <file>', 'sign what is written', 'CUBE_SIGNING_KEY'),
  );
}

/** @param options.create makes a folder that is absent */
export function openWithKeys(
  { repository, signingKey, trustedKeys, dryRun = false }: KeyOptions,
  options: { create?: boolean } = {},
): Repository {
  const signing = signingKey === undefined ? undefined : SigningKey.read(signingKey);
  const trusted = trustedKeys === undefined ? undefined : TrustedKeys.read(trustedKeys);
  return openRepository(repository, { ...options, keys: { signing, trusted }, rehearse: dryRun });
}

export function addKeyCommands(program: Command): void {
  program
    .command('keygen')
    .description('make a key to sign with, and <file>.pub for those who are to trust it')
    .requiredOption('--out <file>', 'where the key is written; it must not be there yet')
    .action(keygen);
  addSigningKeyOption(program.command('sign'))
    .description('sign a version that is published, with another key for example')
    .requiredOption('--repository <place>', 'where versions live')
    .requiredOption('--bundle <name>', 'the model', nameOption('bundle'))
    .requiredOption('--version <name>', 'the version', nameOption('version'))
    .action(sign);
}

async function keygen({ out }: { out: string }): Promise<void> {
  const { keyId, privatePem, publicPem } = makeKeyPair();
  if (!putFileIfAbsent(out, privatePem, SECRET_MODE)) {
    throw new CubeError('CONFLICT', `${out} is there already; a key is never overwritten`);
  }
  if (!putFileIfAbsent(`${out}.pub`, publicPem)) {
    throw new CubeError('CONFLICT', `${out}.pub is there already and belongs to another key`);
  }
  print(`key ${keyId}: ${out} signs (keep it secret), ${out}.pub is for --trusted-keys`);
}

interface SignOptions extends KeyOptions {
  readonly bundle: string;
  readonly version: string;
}

async function sign(options: SignOptions): Promise<void> {
  const { bundle, version, signingKey } = options;
  if (signingKey === undefined) throw new CubeError('INVALID_ARGUMENT', '--signing-key is missing');
  const isNew = await openWithKeys(options).sign(bundle, version);
  const { keyId } = SigningKey.read(signingKey);
  print(`${bundle} ${version} ${isNew ? 'is signed' : 'was signed already'} by key ${keyId}`);
}
