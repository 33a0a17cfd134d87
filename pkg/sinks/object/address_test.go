package object

import "testing"

// TestAddress: where the bucket is.
func TestAddress(t *testing.T) {
	yes, no := true, false
	for _, test := range []struct {
		s3     S3
		region string
		want   string
	}{
		{S3{Bucket: "lake"}, "eu-central-1", "https://lake.s3.eu-central-1.amazonaws.com/"},
		{S3{Bucket: "lake"}, "cn-north-1", "https://lake.s3.cn-north-1.amazonaws.com.cn/"},
		{S3{Bucket: "my.lake"}, "us-east-1", "https://s3.us-east-1.amazonaws.com/my.lake/"},
		{S3{Bucket: "lake", PathStyle: &yes}, "us-east-1", "https://s3.us-east-1.amazonaws.com/lake/"},
		{S3{Bucket: "lake", Endpoint: "http://minio:9000"}, "us-east-1", "http://minio:9000/lake/"},
		{S3{Bucket: "lake", Endpoint: "http://minio:9000/s3/"}, "us-east-1", "http://minio:9000/s3/lake/"},
		{S3{Bucket: "lake", Endpoint: "https://example.com:9000", PathStyle: &no}, "us-east-1", "https://lake.example.com:9000/"},
	} {
		if got, err := test.s3.address(test.region); err != nil || got.String() != test.want {
			t.Errorf("%+v: %s, %v, want %s", test.s3, got, err, test.want)
		}
	}
}
