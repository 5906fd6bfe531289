/** Reads lines of bounded length from a text file or standard input. */
import { createReadStream } from 'node:fs';
import { CubeError } from '../core/errors.ts';
import { fileError } from './files.ts';

const LINE_BYTES_MAX = 64 << 10;
const LF = 10;

/**
 * @param path "-" is standard input
 * @throws CubeError when the input cannot be read, TOO_LARGE for a line longer than `lineBytesMax`
 */
export async function* readLines(
  path: string,
  lineBytesMax: number = LINE_BYTES_MAX,
): AsyncGenerator<string> {
  const source = nameInput(path);
  let rest: Uint8Array = new Uint8Array(0);
  let number = 1;
  const checkLength = (bytes: number): void => {
    if (bytes <= lineBytesMax) return;
    const text = `${source}, line ${number}: more than ${lineBytesMax} bytes`;
    throw new CubeError('TOO_LARGE', text);
  };
  for await (const piece of readPieces(path)) {
    const bytes = rest.length === 0 ? piece : Buffer.concat([rest, piece]);
    let start = 0;
    for (let end = bytes.indexOf(LF); end >= 0; end = bytes.indexOf(LF, start)) {
      checkLength(end - start);
      yield decodeLine(bytes.subarray(start, end));
      start = end + 1;
      number += 1;
    }
    rest = bytes.slice(start);
    checkLength(rest.length);
  }
  if (rest.length > 0) yield decodeLine(rest);
}

/** The name of an input in errors. @param path "-" is standard input */
export function nameInput(path: string): string {
  return path === '-' ? 'standard input' : path;
}

/** @param path "-" is standard input @throws CubeError when the input cannot be read */
export async function* readPieces(path: string): AsyncGenerator<Uint8Array, void, undefined> {
  const stream = path === '-' ? process.stdin : createReadStream(path);
  try {
    yield* stream as AsyncIterable<Uint8Array>;
  } catch (error) {
    throw fileError(error, 'read', nameInput(path));
  }
}

function decodeLine(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes).replace(/\r$/, '');
}
