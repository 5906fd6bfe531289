#!/usr/bin/env node
/** `hypercube features`: writes and checks features.json. */
import { run } from './cli.ts';

process.exitCode = await run();
