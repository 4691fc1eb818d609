from pyarrow import ParquetFile
