/** The token of control calls: one line in a file, never on a command line, in a log or in a message. */
import { CubeError } from '../core/errors.ts';
import { readText } from '../platform/files.ts';

const TOKEN_BYTES_MAX = 4096;
const TOKEN_CHARS_MIN = 16;
/** What an HTTP header can carry. */
const TOKEN = /^[\x20-\x7e]+$/;

/** @throws CubeError INVALID_ARGUMENT for what cannot be a token, and as `readText` */
export function readTokenFile(path: string): string {
  const token = readText(path, TOKEN_BYTES_MAX).trim();
  if (token.length >= TOKEN_CHARS_MIN && TOKEN.test(token)) return token;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${path}: a control token has at least ${TOKEN_CHARS_MIN} characters, printable ASCII on one line ` +
      '(openssl rand -hex 32 makes one)',
  );
}
