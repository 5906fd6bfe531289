/**
 * Writes the golden files of Cube's formats:
 * node dist/test/tools/cube-builder/sources/make-golden-process.js
 */
import { join } from 'node:path';
import { replaceFile } from '../../../../lib/platform/files.ts';
import { createGoldenCubeFiles } from './support/golden.ts';

for (const [path, bytes] of createGoldenCubeFiles())
  replaceFile(join('data', 'golden', path), bytes);
