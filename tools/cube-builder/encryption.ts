/** Encrypted builds: their options, sealing of a version's files, and the commands for keys. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest, VersionFile } from '../../lib/core/manifest.ts';
import { isSealed } from '../../lib/core/sealed-format.ts';
import { type Command, Option, UsageError } from '../../lib/platform/cli.ts';
import {
  type EncryptionKey,
  getSealingKey,
  processKeys,
  setSealingKey,
} from '../../lib/platform/encryption-keys.ts';
import { useKeys } from '../../lib/platform/encryption-options.ts';
import { openSealedBytes, sealBytes } from '../../lib/platform/sealed-file.ts';
import { computeSha256 } from '../../lib/repository/verified-copy.ts';

export interface EncryptOptions {
  readonly encryptKeyFile?: string;
  readonly encryptKeyCommand?: string;
}

const FLAGS = '--encrypt-key-file and --encrypt-key-command';

export function addEncryptOptions(command: Command): Command {
  return command
    .addOption(
      new Option(
        '--encrypt-key-file <file>',
        'Encrypt the version with the first key of a file, one of 64 hex digits on a line; the ' +
          'other keys open older versions (default: no encryption)',
      ).env('HYPERCUBE_ENCRYPT_KEY_FILE'),
    )
    .addOption(
      new Option(
        '--encrypt-key-command <command>',
        'Encrypt the version with the first key that a program prints; its arguments are ' +
          'separated by spaces, or it is a JSON array of strings; it is run without a shell',
      ).env('HYPERCUBE_ENCRYPT_KEY_COMMAND'),
    );
}

/** Encrypts everything that this process publishes, if one of the options is given. */
export function useEncryptOptions(options: EncryptOptions): void {
  const { encryptKeyFile: file, encryptKeyCommand: command } = options;
  processKeys.clear();
  useKeys({ file, command }, FLAGS);
  setSealingKey(processKeys.first);
}

/** The key that data keys are wrapped with. @throws UsageError without a key */
export function requireKeys(options: EncryptOptions): EncryptionKey {
  useEncryptOptions(options);
  setSealingKey(undefined);
  const { first } = processKeys;
  if (first === undefined) throw new UsageError(`${FLAGS}: give one of them`);
  return first;
}

/**
 * Versions with and without encryption share no layers, so a version and its parent are both
 * encrypted or both clear.
 * @throws CubeError INVALID_ARGUMENT
 */
export function checkParentEncryption(parent: Manifest | undefined): void {
  if (parent === undefined) return;
  const isEncrypted = parent.encryption !== undefined;
  if (isEncrypted === (getSealingKey() !== undefined)) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    isEncrypted
      ? `version ${parent.version} is encrypted: give --encrypt-key-file or --encrypt-key-command`
      : `version ${parent.version} is not encrypted, so its layers cannot be part of an ` +
          'encrypted version: build a base of all tables',
  );
}

/** The files of a version as they are stored, and their list for the manifest. */
export function storeFiles(clear: ReadonlyMap<string, Uint8Array>): {
  readonly files: Map<string, Uint8Array>;
  readonly listed: VersionFile[];
} {
  const key = getSealingKey();
  const files = new Map<string, Uint8Array>();
  const listed: VersionFile[] = [];
  for (const [path, bytes] of clear) {
    const sha256 = computeSha256(bytes);
    const stored =
      key === undefined ? bytes : sealBytes(bytes, { contentId: sha256.slice(0, 32), sha256 }, key);
    files.set(path, stored);
    listed.push({ path, bytes: stored.length, sha256: computeSha256(stored) });
  }
  return { files, listed };
}

/** The clear content of files as they are stored. */
export function openFiles(stored: ReadonlyMap<string, Uint8Array>): Map<string, Uint8Array> {
  return new Map(
    Array.from(stored, ([path, bytes]) => {
      return [path, isSealed(bytes) ? openSealedBytes(bytes, path, processKeys) : bytes];
    }),
  );
}

/** The field of a manifest; undefined without encryption. */
export function getEncryption(): Manifest['encryption'] {
  const key = getSealingKey();
  return key && { keyId: key.keyId };
}
