/** `keygen` and `sign`: make a signing key, and sign a published version. */
import { CubeError } from '../../lib/core/errors.ts';
import { type Command, UsageError } from '../../lib/platform/cli.ts';
import { fileExists, putFileIfAbsent } from '../../lib/platform/files.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import { generateKeyPair, SigningKey } from '../../lib/repository/signatures.ts';
import {
  addBundleOption,
  addDryRunOption,
  addJsonOption,
  addSigningKeyOption,
  addVersionOption,
  addWritableRepositoryOption,
  type BundleOptions,
  openRepositoryWithKeys,
  withDryRunNote,
} from './options.ts';

/** Only the owner can read it. */
const PRIVATE_KEY_MODE = 0o600;

interface KeygenOptions {
  readonly out: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

interface SignOptions extends BundleOptions {
  readonly version: string;
  readonly json?: boolean;
}

export function addKeyCommands(program: Command): void {
  addJsonOption(addDryRunOption(program.command('keygen')))
    .description('Generate a signing key in <file>, and its public key in <file>.pub')
    .requiredOption(
      '--out <file>',
      'File to write the private key to; it must not exist, missing folders are created',
    )
    .action(keygen);
  const command = addBundleOption(addWritableRepositoryOption(program.command('sign')));
  addVersionOption(
    addSigningKeyOption(command, 'Private key to sign the version with (required)'),
    'Published version to sign',
  );
  addJsonOption(addDryRunOption(command))
    .description('Sign a published version, for example with a second key')
    .action(sign);
}

async function keygen(options: KeygenOptions): Promise<void> {
  const { out, dryRun = false, json } = options;
  const publicKey = `${out}.pub`;
  const { keyId, privatePem, publicPem } = generateKeyPair();
  const put = (path: string, text: string, mode?: number): boolean =>
    dryRun ? !fileExists(path) : putFileIfAbsent(path, text, mode);
  if (!put(out, privatePem, PRIVATE_KEY_MODE)) {
    throw new CubeError('CONFLICT', `${out} exists; keys are not overwritten, name another file`);
  }
  if (!put(publicKey, publicPem)) {
    const text = `${publicKey} exists and belongs to another key; name another file with --out`;
    throw new CubeError('CONFLICT', text);
  }
  if (json) {
    printLine(JSON.stringify({ ...(!dryRun && { keyId }), privateKey: out, publicKey, dryRun }));
    return;
  }
  // The key of a dry run is thrown away, so its id would mislead.
  const subject = dryRun ? 'a new key' : `key ${keyId}`;
  const text = `${subject}: private key ${out} (keep it secret), public key ${publicKey}`;
  printLine(withDryRunNote(text, options));
}

async function sign(options: SignOptions): Promise<void> {
  const { bundle, version, signingKey, dryRun = false, json } = options;
  if (signingKey === undefined)
    throw new UsageError("required option '--signing-key <file>' not specified");
  const signed = await openRepositoryWithKeys(options).sign(bundle, version);
  const { keyId } = SigningKey.read(signingKey);
  const outcome = signed ? 'is signed' : 'was already signed';
  const text = `${bundle} ${version} ${outcome} by key ${keyId}`;
  printLine(
    json
      ? JSON.stringify({ bundle, version, keyId, signed, dryRun })
      : withDryRunNote(text, options),
  );
}
