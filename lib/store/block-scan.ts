/**
 * Reads a layer file once from start to end: its SHA-256, and every block whose checksum does not
 * match.
 */
import { createHash, type Hash } from 'node:crypto';
import { BLOCK_BYTES, HEADER_BYTES, type LayerHeader } from '../core/layer-format.ts';
import { RandomAccessReader } from '../platform/files.ts';
import { BlockHasher } from './block-hasher.ts';

/** Expected checksums of a file's blocks. */
export interface BlockChecksums {
  readonly header: LayerHeader;
  /** Two words per block: low, high. */
  readonly words: Uint32Array;
}

export interface BlockScan {
  readonly bytes: number;
  readonly sha256: string;
  /** Numbers of damaged blocks, ascending; empty when there are no checksums to compare with. */
  readonly damaged: readonly number[];
}

/**
 * @param checksums undefined when header or checksums are unusable: only the SHA-256 is computed
 * @param onBytes called with the bytes read since the last call
 */
export function scanBlocks(
  path: string,
  checksums: BlockChecksums | undefined,
  onBytes: (bytes: number) => void,
): BlockScan {
  const reader = new RandomAccessReader(path);
  const hasher = BlockHasher.acquire();
  const sha = createHash('sha256');
  const damaged: number[] = [];
  try {
    const end = checksums?.header.checksumsOffset ?? 0;
    let position = Math.min(HEADER_BYTES, reader.bytes);
    readAndHash(reader, 0, hasher.block.subarray(0, position), sha);
    while (position < reader.bytes) {
      const limit = position < end ? end : reader.bytes;
      const length = Math.min(BLOCK_BYTES, limit - position);
      readAndHash(reader, position, hasher.block.subarray(0, length), sha);
      if (checksums !== undefined && position < end) {
        const block = (position - HEADER_BYTES) / BLOCK_BYTES;
        const hash = hasher.hash(length);
        const { words } = checksums;
        const matches = hash[0] === words[2 * block] && hash[1] === words[2 * block + 1];
        if (!matches) damaged.push(block);
      }
      position += length;
      onBytes(length);
    }
    return { bytes: reader.bytes, sha256: sha.digest('hex'), damaged };
  } finally {
    reader.close();
    hasher.release();
  }
}

function readAndHash(
  reader: RandomAccessReader,
  position: number,
  target: Uint8Array,
  sha: Hash,
): void {
  reader.readInto(target, position);
  sha.update(target);
}
